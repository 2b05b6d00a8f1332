#!/usr/bin/env python3
"""The server as its clients meet it: the OpenAI API, bad input, limits, clients that leave, shutdown.

Usage: serve_test.py PATH_OF_OASIS [unittest arguments]. Skipped without the small model.

Cases and the tests that are about them:
    6      Preemption.test_preempted_sequences_give_the_tokens_of_a_large_pool
    7, 59  Api.test_what_the_prefix_cache_gives_is_counted_to_the_token
    9      Api.test_a_prefix_that_is_still_being_read_is_not_matched_too_early
    17     Api.test_at_the_end_of_the_context_one_ends_and_the_others_go_on
    36     Api.test_stop_strings_end_the_text_before_them
    38     Api.test_usage_comes_last_if_asked_for
    40     Api.test_ids_and_prompts_out_of_range_are_refused_and_the_next_request_is_fine
    41     Api.test_log_probabilities_are_numbers_that_json_has
    42     Api.test_ignore_eos_goes_on_to_the_last_token
    43     Api.test_a_body_that_is_no_request_is_an_error_in_json
    60     Api.test_progress_of_a_long_prompt_grows_to_its_end_if_asked_for
"""

import contextlib
import json
import pathlib
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

from client import MODEL, TIMEOUT_S, Server, events, finish_of, text_of

OASIS = "oasis"
CONTEXT, SEQUENCES, QUEUE = 1024, 4, 4
STORY = "Once upon a time there was a"


def in_threads(*calls):
    """Runs all at once; their results in order. An exception of one is raised here."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except BaseException as e:  # raised below
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@unittest.skipUnless(MODEL.exists(), "needs the small model")
class ServeTest(unittest.TestCase):
    FLAGS = ["--context", CONTEXT, "--max-sequences", SEQUENCES, "--max-queue", QUEUE, "--body-limit", "256KiB",
             "--read-seconds", 3]

    @classmethod
    def setUpClass(cls):
        cls.server = Server(OASIS, *cls.FLAGS)
        cls.addClassCleanup(cls.end_well)

    @classmethod
    def end_well(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"the server ended with {code}: {''.join(cls.server.log[-20:])}")

    def refused(self, status, words, path, body, headers=None):
        """An error in the API's shape, whose message has all of `words`."""
        got, answer = self.server.post(path, body, headers)
        self.assertEqual(got, status, answer)
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"}, answer)
        for word in words:
            self.assertIn(word, answer["error"]["message"])
        return answer["error"]

    def idle(self):
        """Nothing runs, waits or is held."""
        return self.server.wait_until(self.is_idle)

    @staticmethod
    def is_idle(m):
        return (m["vllm:num_requests_running"] == 0 and m["vllm:num_requests_waiting"] == 0 and
                m["vllm:kv_cache_usage_perc"] == 0 and m["oasis_capacity_blocks_reserved"] == 0 and
                sum(v for k, v in m.items() if 'state="referenced"' in k) == 0)

    def long_request(self, max_tokens=900):
        """A stream that goes on for some seconds."""
        return self.server.open_stream("/v1/completions",
                                       {"prompt": STORY, "max_tokens": max_tokens, "ignore_eos": True})


class Api(ServeTest):
    def test_the_small_endpoints_answer(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))
        self.assertEqual(self.server.get("/ready"), (200, {"status": "ready"}))
        self.assertRegex(self.server.get("/version")[1]["version"], r"^\d+\.\d+\.\d+$")
        status, models = self.server.get("/v1/models")
        self.assertEqual((status, models["data"][0]["id"]), (200, self.server.model))
        self.assertEqual(models["data"][0]["max_model_len"], CONTEXT)
        self.assertEqual(self.server.get("/v1/models/" + self.server.model)[0], 200)
        self.assertEqual(self.server.get("/v1/models/another")[0], 404)
        status, headers, page = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("text/html", headers["Content-Type"])
        self.assertIn(b"state", page)

    def test_a_stream_says_what_the_whole_answer_says(self):
        for fields in ({}, {"temperature": 0.9, "seed": 7}, {"n": 3, "temperature": 1, "seed": 3}):
            whole = self.server.complete(prompt=STORY, max_tokens=24, **fields)
            chunks = self.server.stream("/v1/completions", {"prompt": STORY, "max_tokens": 24, **fields})
            self.assertEqual(text_of(chunks), {c["index"]: c["text"] for c in whole["choices"]})
            self.assertEqual(finish_of(chunks), {c["index"]: c["finish_reason"] for c in whole["choices"]})
            self.assertEqual(chunks[-1], "[DONE]")

    def test_a_chat_stream_says_what_the_whole_answer_says(self):
        body = {"messages": [{"role": "system", "content": "Be brief."},
                             {"role": "user", "content": [{"type": "text", "text": "What is a cat?"}]}],
                "max_tokens": 24}
        for _ in range(2):  # a cached prompt is read by other kernels than a new one: the second time, like the stream
            status, whole = self.server.post("/v1/chat/completions", {"temperature": 0, **body})
            self.assertEqual(status, 200, whole)
        chunks = self.server.stream("/v1/chat/completions", body)
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(text_of(chunks)[0], whole["choices"][0]["message"]["content"])
        self.assertEqual(whole["object"], "chat.completion")
        self.assertEqual(chunks[0]["object"], "chat.completion.chunk")

    def test_prompts_come_as_text_ids_or_lists_of_both(self):
        ids = self.server.post("/tokenize", {"prompt": STORY})[1]["tokens"]
        one = self.server.complete(prompt=STORY, max_tokens=8)
        self.assertEqual(self.server.complete(prompt=ids, max_tokens=8)["choices"], one["choices"])
        self.assertEqual(one["usage"]["prompt_tokens"], len(ids))
        two = self.server.complete(prompt=[STORY, "The sea"], max_tokens=8)
        self.assertEqual([c["index"] for c in two["choices"]], [0, 1])
        self.assertEqual(two["choices"][0]["text"], one["choices"][0]["text"])
        by_id = self.server.complete(prompt=[ids, self.server.post("/tokenize", {"prompt": "The sea"})[1]["tokens"]],
                                     max_tokens=8)
        self.assertEqual(by_id["choices"], two["choices"])

    def test_tokens_become_text_again(self):
        text = "Grüße, 世界! <|im_end|>\n 12 34"
        status, tokens = self.server.post("/tokenize", {"prompt": text, "return_token_strs": True})
        self.assertEqual((status, tokens["count"]), (200, len(tokens["tokens"])))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]})[1], {"prompt": text})
        status, chat = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
        self.assertIn("<|im_start|>user\nHi<|im_end|>",
                      self.server.post("/detokenize", {"tokens": chat["tokens"]})[1]["prompt"])
        self.refused(400, ["tokens"], "/detokenize", {"tokens": [1 << 20]})
        status, info = self.server.get("/tokenizer_info")
        self.assertEqual((status, info["eos_token"], info["model_max_length"]), (200, "<|im_end|>", CONTEXT))
        self.assertIn("<|im_start|>", info["chat_template"])

    def test_sampling_fields_do_what_they_say(self):
        eight = {"prompt": STORY, "max_tokens": 8}
        seeded = [self.server.complete(**eight, temperature=1, seed=s)["choices"][0]["text"] for s in (5, 5, 6)]
        self.assertEqual(seeded[0], seeded[1])
        self.assertNotEqual(seeded[0], seeded[2])
        greedy = self.server.complete(**eight)["choices"][0]["text"]
        for field in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
            hot = self.server.complete(**eight, temperature=2, seed=1, **field)
            self.assertEqual(hot["choices"][0]["text"], greedy, field)
        cat = self.server.post("/tokenize", {"prompt": " cat"})[1]["tokens"][0]
        biased = self.server.complete(**eight, logit_bias={str(cat): 100})
        self.assertEqual(biased["choices"][0]["text"], " cat" * 8)
        punished = self.server.complete(**eight, logit_bias={str(cat): 21}, frequency_penalty=2, presence_penalty=2,
                                        repetition_penalty=2)
        self.assertLess(punished["choices"][0]["text"].count(" cat"), 8)

    def test_copies_of_a_prompt_share_it_through_the_prefix_cache(self):
        ids = list(range(5000, 5100))
        before = self.idle()
        answer = self.server.complete(prompt=ids, max_tokens=2, n=3, temperature=1, seed=1)
        after = self.idle()
        self.assertEqual(len(answer["choices"]), 3)
        self.assertEqual(answer["usage"]["prompt_tokens"], 100)
        self.assertEqual(after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"], 2 * 96)

    def test_fields_that_this_server_does_not_know_are_ignored(self):
        self.server.complete(prompt=STORY, max_tokens=1, user="me", metadata={"a": 1}, store=None, service_tier="auto")

    def test_what_is_not_supported_is_said(self):
        for field in ({"response_format": {"type": "json_object"}}, {"guided_json": {}}, {"best_of": 2},
                      {"response_format": {"type": "json_schema", "json_schema": {}}}, {"min_tokens": 3}):
            error = self.refused(400, ["not supported"], "/v1/completions", {"prompt": STORY, **field})
            self.assertEqual(error["param"], next(iter(field)))
        self.server.complete(prompt=STORY, max_tokens=1, response_format={"type": "text"})
        tools = [{"type": "function", "function": {"name": "f"}}]
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice}
            self.refused(400, ["tool_choice"], "/v1/chat/completions", body)

    def test_oasis_options_within_what_a_request_may_set(self):
        stats = self.server.complete(prompt=STORY, max_tokens=4, oasis={"stats": True})["choices"][0]["oasis"]
        self.assertEqual(stats["steps"], 3)  # the first token is the prompt's
        followed = self.server.complete(prompt=STORY, max_tokens=3, oasis={"follow": [100, 200, 300]})
        text = self.server.post("/detokenize", {"tokens": [100, 200, 300]})[1]["prompt"]
        self.assertEqual(followed["choices"][0]["text"], text)
        self.refused(400, ["attention", "server starts"], "/v1/completions",
                     {"prompt": STORY, "oasis": {"attention": "dense"}})
        self.refused(400, ["magic"], "/v1/completions", {"prompt": STORY, "oasis": {"magic": 1}})

    def test_tools_reach_the_model(self):
        tools = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}}}]
        plain = self.server.chat("Weather in Rome?", max_tokens=4)
        with_tools = self.server.chat("Weather in Rome?", max_tokens=4, tools=tools)
        none = self.server.chat("Weather in Rome?", max_tokens=4, tools=tools, tool_choice="none")
        self.assertGreater(with_tools["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"] + 20)
        self.assertEqual(none["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"])

    def test_tool_calls_come_back_as_fields(self):
        call = '<tool_call>[{"name": "weather", "arguments": {"city": "Rome"}}]</tool_call>'
        ids = self.server.post("/tokenize", {"prompt": call})[1]["tokens"]
        ids.append(self.server.post("/tokenize", {"prompt": "<|im_end|>"})[1]["tokens"][0])
        fields = {"tools": [{"type": "function", "function": {"name": "weather"}}], "oasis": {"follow": ids},
                  "max_tokens": len(ids)}
        choice = self.server.chat("Weather in Rome?", **fields)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIsNone(choice["message"]["content"])
        function = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual((function["name"], json.loads(function["arguments"])), ("weather", {"city": "Rome"}))
        chunks = self.server.stream("/v1/chat/completions",
                                    {"messages": [{"role": "user", "content": "Weather in Rome?"}], **fields})
        calls = [c for chunk in chunks[:-1] for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([c["function"]["name"] for c in calls], ["weather"])
        self.assertEqual((text_of(chunks), finish_of(chunks)), ({0: ""}, {0: "tool_calls"}))
        history = [{"role": "user", "content": "Weather in Rome?"},
                   {"role": "assistant", "content": None, "tool_calls": choice["message"]["tool_calls"]},
                   {"role": "tool", "tool_call_id": "x", "content": "sunny"}]
        self.assertEqual(self.server.post("/v1/chat/completions", {"messages": history, "max_tokens": 2})[0], 200)

    # case 17
    def test_at_the_end_of_the_context_one_ends_and_the_others_go_on(self):
        alone = self.server.complete(prompt=STORY, max_tokens=60, ignore_eos=True)
        at_end, beside = in_threads(
            lambda: self.server.complete(prompt=list(range(3000, 3000 + CONTEXT - 20)), max_tokens=500, ignore_eos=True),
            lambda: self.server.complete(prompt=STORY, max_tokens=60, ignore_eos=True))
        self.assertEqual(at_end["choices"][0]["finish_reason"], "length")
        self.assertEqual(at_end["usage"]["total_tokens"], CONTEXT)
        self.assertEqual(beside["choices"], alone["choices"])
        error = self.refused(400, [str(CONTEXT)], "/v1/completions", {"prompt": list(range(CONTEXT))})
        self.assertEqual(error["code"], "context_length_exceeded")

    # case 36
    def test_stop_strings_end_the_text_before_them(self):
        letters = self.server.post("/tokenize", {"prompt": "L M N O P Q R S"})[1]["tokens"]
        question = self.server.post("/tokenize", {"prompt": "Why?\nBecause"})[1]["tokens"]
        for ids, stop, text in ((letters, "O P Q", "L M N "), (question, "\n", "Why?"), (question, ["x", "?\nB"], "Why"),
                                (letters, "absent", "L M N O P Q R S")):
            fields = {"prompt": STORY, "max_tokens": len(ids), "stop": stop, "oasis": {"follow": ids}}
            whole = self.server.complete(**fields)["choices"][0]
            chunks = self.server.stream("/v1/completions", fields)
            self.assertEqual(whole["text"], text)
            self.assertEqual(text_of(chunks)[0], text)
            reason = "length" if stop == "absent" else "stop"
            self.assertEqual((whole["finish_reason"], finish_of(chunks)[0]), (reason, reason))

    # case 38
    def test_usage_comes_last_if_asked_for(self):
        body = {"prompt": STORY, "max_tokens": 5, "ignore_eos": True}
        chunks = self.server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        self.assertEqual(chunks[-2]["choices"], [])
        self.assertEqual(chunks[-2]["usage"]["completion_tokens"], 5)
        self.assertTrue(all(c["usage"] is None for c in chunks[:-2]))
        for chunk in self.server.stream("/v1/completions", body)[:-1]:
            self.assertNotIn("usage", chunk)
            self.assertTrue(chunk["choices"])

    # case 40
    def test_ids_and_prompts_out_of_range_are_refused_and_the_next_request_is_fine(self):
        vocab = 49152
        for body in ({"prompt": ""}, {"prompt": []}, {"prompt": [999999]}, {"prompt": [-1]}, {"prompt": [[]]},
                     {"prompt": ["ok", ""]}, {"prompt": [1, "a"]}, {"prompt": STORY, "stop_token_ids": [vocab]},
                     {"prompt": STORY, "logit_bias": {str(vocab): 1}}, {"prompt": STORY, "logit_bias": {"1": 1000}},
                     {"prompt": STORY, "stop": ""}, {}):
            self.refused(400, [], "/v1/completions", body)
            self.server.complete(prompt=STORY, max_tokens=1)
        self.refused(400, ["messages"], "/v1/chat/completions", {"messages": []})

    # case 41
    def test_log_probabilities_are_numbers_that_json_has(self):
        answer = self.server.complete(prompt=STORY, max_tokens=4, top_k=1, echo=True, logprobs=5, temperature=1)
        choice = answer["choices"][0]
        self.assertTrue(choice["text"].startswith(STORY))
        lp = choice["logprobs"]
        total = answer["usage"]["total_tokens"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(lp[name]), total, name)
        self.assertIsNone(lp["token_logprobs"][0])
        self.assertTrue(all(-9999 <= x <= 0 for x in lp["token_logprobs"][1:]))
        self.assertTrue(all(len(top) == 5 for top in lp["top_logprobs"][1:]))
        self.assertEqual("".join(lp["tokens"]), choice["text"])
        self.assertEqual(choice["text"][lp["text_offset"][-1]:], lp["tokens"][-1])
        content = self.server.chat(max_tokens=3, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(c["top_logprobs"]) for c in content], [2, 2, 2])
        self.assertEqual(bytes(content[0]["bytes"]).decode(), content[0]["token"])
        chunks = self.server.stream("/v1/completions", {"prompt": STORY, "max_tokens": 4, "logprobs": 0})
        parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
        self.assertEqual(sum(len(p["tokens"]) for p in parts), 4)

    def test_a_prompt_s_log_probabilities_are_those_of_its_tokens_as_output(self):
        """What the model says of a prompt's token is what it says when it is made to say it."""
        ids = self.server.post("/tokenize", {"prompt": "The cat sat on the mat and looked at the moon, which was full. " * 4})
        ids = ids[1]["tokens"]
        said = self.server.complete(prompt=ids[:1], max_tokens=len(ids) - 1, logprobs=20, ignore_eos=True,
                                    oasis={"follow": ids[1:]})["choices"][0]["logprobs"]
        for fields in ({"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 0, "stream": True}):
            body = {"prompt": ids, "echo": True, "logprobs": 3, **fields}
            if fields.get("stream"):
                chunks = self.server.stream("/v1/completions", body)
                parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
                read = {name: [x for p in parts for x in p[name]] for name in parts[0]}
            else:
                answer = self.server.complete(**body)
                read = answer["choices"][0]["logprobs"]
                self.assertEqual(answer["usage"]["completion_tokens"], fields["max_tokens"])
                self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(len(read["tokens"]), len(ids) + fields["max_tokens"])
            compared = 0  # made to say a token, the model gives the log-probability of the one that it would have said
            for i in range(1, len(ids)):
                self.assertEqual(read["tokens"][i], said["tokens"][i - 1])
                likely = said["top_logprobs"][i - 1].get(read["tokens"][i])
                if likely is not None:
                    self.assertAlmostEqual(read["token_logprobs"][i], likely, delta=0.05)
                    compared += 1
            self.assertGreater(compared, len(ids) / 2)
            best = sum(max(a, key=a.get) == max(b, key=b.get)
                       for a, b in zip(read["top_logprobs"][1:len(ids)], said["top_logprobs"]))
            self.assertGreater(best, 0.9 * (len(ids) - 1))
        self.refused(400, ["echo"], "/v1/completions", {"prompt": STORY, "max_tokens": 0})
        self.refused(400, ["max_tokens"], "/v1/chat/completions",
                     {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 0})

    # case 42
    def test_ignore_eos_goes_on_to_the_last_token(self):
        eos = self.server.post("/tokenize", {"prompt": "<|im_end|>"})[1]["tokens"][0]
        biased = {"prompt": STORY, "max_tokens": 64, "logit_bias": {str(eos): 100}}
        ended = self.server.complete(**biased)
        self.assertEqual((ended["usage"]["completion_tokens"], ended["choices"][0]["finish_reason"]), (1, "stop"))
        self.assertEqual(ended["choices"][0]["text"], "")
        for more in ({"ignore_eos": True}, {"min_tokens": 64}):
            answer = self.server.complete(**biased, **more)
            self.assertEqual(answer["usage"]["completion_tokens"], 64)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    # case 43
    def test_a_body_that_is_no_request_is_an_error_in_json(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            for body in (b"", b"{x", b"[]", b"null", b"7", b'"text"', b'{"prompt": "\xff\xfe"}', b"\xff\xfe\x00", b"{}",
                         b'{"prompt": "\\ud800"}', b"[" * 100000, b'{"a":' * 5000, b'{"prompt": 1e999}'):
                self.refused(400, [], path, body)
        wrong = {"prompt": [7, {}, True, 1.5, [True], [[1.5]], [None]], "max_tokens": [0, -1, "8", 1.5, 1 << 40, True, []],
                 "temperature": [-1, 3, "1", [], True], "top_p": [0, -1, 2, "1"], "top_k": [-2, 1.5, "1"],
                 "min_p": [-1, 2], "n": [0, -1, 129, "1"], "stop": [7, [7], {}, [""]], "stream": ["yes", 1],
                 "logprobs": [-1, 21, True], "seed": ["x", 1.5, 1 << 70], "logit_bias": [[], {"x": 1}, {"1": "x"}],
                 "echo": ["x"], "stop_token_ids": [7, ["x"], [-1]], "presence_penalty": [3, "x"], "model": [7],
                 "frequency_penalty": [-3], "repetition_penalty": [0, "x"], "stream_options": [7, {"include_usage": 1}],
                 "oasis": [7, {"stats": 1}], "ignore_eos": ["x"], "response_format": ["text", {}]}
        for field, values in wrong.items():
            for value in values:
                error = self.refused(400, [field], "/v1/completions", {"prompt": STORY, field: value})
                self.assertEqual(error["type"], "invalid_request_error")
        user = {"role": "user", "content": "x"}
        for body in ({"messages": 7}, {"messages": [7]}, {"messages": [{"role": 7, "content": "x"}]},
                     {"messages": [{"role": "user"}]}, {"messages": [{"role": "<|im_end|>", "content": "x"}]},
                     {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                     {"messages": [user], "tools": 7}, {"messages": [user], "tools": [{"type": "function"}]},
                     {"messages": [user], "logprobs": 5}, {"messages": [user], "top_logprobs": 5},
                     {"messages": [user], "chat_template_kwargs": 7}):
            self.refused(400, [], "/v1/chat/completions", body)
        self.refused(404, ["another"], "/v1/completions", {"prompt": STORY, "model": "another"})

    # case 60
    def test_progress_of_a_long_prompt_grows_to_its_end_if_asked_for(self):
        body = {"prompt": list(range(7000, 7900)), "max_tokens": 2, "ignore_eos": True}
        for path, fields in (("/v1/completions", body), ("/v1/chat/completions", {
                "max_tokens": 2, "ignore_eos": True, "messages": [{"role": "user", "content": "number " * 700}]})):
            self.assertTrue(all("prompt_progress" not in c for c in self.server.stream(path, fields)[:-1]))
        body["prompt"] = list(range(9000, 9900))
        chunks = self.server.stream("/v1/completions", {**body, "return_progress": True})
        progress = [c["prompt_progress"] for c in chunks[:-1] if "prompt_progress" in c]
        self.assertTrue(all(p["total"] == 900 for p in progress))
        processed = [p["processed"] for p in progress]
        self.assertGreater(len(processed), 2)
        self.assertEqual(processed, sorted(set(processed)))
        self.assertEqual(processed[-1], 900)

    # cases 7 and 59, as far as a client sees them: exact counts, and an abort leaves nothing
    def test_what_the_prefix_cache_gives_is_counted_to_the_token(self):
        self.idle()
        known, ids = list(range(11000, 11600)), list(range(11000, 11900))
        first = self.server.complete(prompt=known, max_tokens=2)
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        before = self.idle()
        longer = self.server.complete(prompt=ids, max_tokens=2)
        again = self.server.complete(prompt=known, max_tokens=2)  # shorter than what is cached now
        after = self.idle()
        self.assertEqual(longer["usage"]["prompt_tokens_details"]["cached_tokens"], 592)  # 37 whole blocks
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 592)
        self.assertEqual(again["choices"], first["choices"])
        self.assertEqual(after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"], 1500)
        self.assertEqual(after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"], 1184)
        connection, answer = self.server.open_stream("/v1/completions", {
            "prompt": list(range(11000, 11600)) + list(range(20000, 20400)), "max_tokens": 20, "return_progress": True})
        answer.readline()
        answer.close()
        connection.close()
        self.assertTrue(self.is_idle(self.idle()))

    # case 9, as far as a client sees it
    def test_a_prefix_that_is_still_being_read_is_not_matched_too_early(self):
        ids = list(range(13000, 13700))
        both = in_threads(*[lambda: self.server.complete(prompt=ids, max_tokens=6)] * 3)
        alone = self.server.complete(prompt=ids, max_tokens=6)
        for answer in both:
            self.assertEqual(answer["choices"], alone["choices"])


class Behaviour(ServeTest):
    def test_http_errors_are_json_errors(self):
        self.refused(404, ["/v1/nothing"], "/v1/nothing", {})
        self.refused(405, ["GET"], "/health", {})
        status, headers, body = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        json.loads(body)
        status, headers, body = self.server.request("HEAD", "/health")
        self.assertEqual((status, body), (200, b""))

    def test_a_body_too_large_is_413_and_a_header_too_large_431(self):
        self.refused(413, [str(256 << 10)], "/v1/completions", {"prompt": "x" * (300 << 10)})
        chunked = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + (
            b"10000\r\n" + b"x" * 65536 + b"\r\n") * 5
        self.assertIn(b" 413 ", self.server.raw(chunked).split(b"\r\n")[0])
        answer = self.server.raw(b"GET /health HTTP/1.1\r\nX: " + b"x" * 40000 + b"\r\n\r\n")
        self.assertIn(b" 431 ", answer.split(b"\r\n")[0])

    def test_what_is_no_http_is_400(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nbroken header\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            answer = self.server.raw(data, shutdown=False)
            self.assertIn(b" 400 ", answer.split(b"\r\n")[0], data)

    def test_a_client_that_is_slow_to_ask_is_let_go(self):
        for data in (b"GET /health HT", b"POST /tokenize HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"):
            begin = time.monotonic()
            answer = self.server.raw(data, wait_s=20)
            self.assertIn(b" 408 ", answer.split(b"\r\n")[0])
            self.assertLess(time.monotonic() - begin, 15)

    def test_requests_in_one_go_are_answered_in_order(self):
        body = json.dumps({"prompt": "a b", "max_tokens": 2}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        answer = self.server.raw(post + b"GET /version HTTP/1.1\r\n\r\n" + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertLess(answer.index(b"text_completion"), answer.index(b'"version"'))
        self.assertLess(answer.index(b'"version"'), answer.index(b'"status"'))

    def test_an_old_client_gets_a_stream_without_chunks_of_http(self):
        body = json.dumps({"prompt": "a b", "max_tokens": 2, "stream": True}).encode()
        answer = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head, _, rest = answer.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertTrue(rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n"), rest)

    def test_a_client_that_asks_before_it_sends_is_told_to(self):
        with socket.create_connection(self.server.address, timeout=TIMEOUT_S) as s:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n")
            self.assertEqual(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(b'{"prompt":"ab"}')
            self.assertIn(b"200 OK", s.recv(1000))

    def test_a_client_that_leaves_frees_all_that_it_held(self):
        self.idle()
        for path in ("stream", "whole", "queued"):
            before = self.server.metrics()
            connections = [self.long_request() for _ in range(SEQUENCES + 2 if path == "queued" else 2)] \
                if path == "stream" else []
            if path != "stream":
                count = SEQUENCES + 2 if path == "queued" else 1
                body = json.dumps({"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "temperature": 0}).encode()
                for _ in range(count):
                    s = socket.create_connection(self.server.address, timeout=TIMEOUT_S)
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    connections.append((s, s))
            running = self.server.wait_until(lambda m: m["vllm:generation_tokens_total"] >
                                             before["vllm:generation_tokens_total"] + 8)
            self.assertGreater(running["vllm:num_requests_running"], 0)
            for connection, answer in connections:
                answer.close()
                connection.close()
            after = self.idle()
            self.assertTrue(self.is_idle(after), path)
            made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
            self.assertLess(made, 400 * len(connections), path)
            aborted = [k for k in after if "finished_reason=\"abort\"" in k][0]
            self.assertEqual(after[aborted] - before[aborted], len(connections), path)
        self.assertIn("finish=gone", "".join(self.server.log))

    def test_when_the_queue_is_full_clients_are_asked_to_come_back(self):
        self.idle()
        connections = []
        body = json.dumps({"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "temperature": 0}).encode()
        for _ in range(SEQUENCES + QUEUE):
            s = socket.create_connection(self.server.address, timeout=TIMEOUT_S)
            self.addCleanup(s.close)
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            connections.append(s)
        full = lambda m: m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == SEQUENCES + QUEUE
        self.assertTrue(full(self.server.wait_until(full)))
        status, headers, answer = self.server.request("POST", "/v1/completions", {"prompt": STORY})
        self.assertEqual(status, 429)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        self.assertEqual(json.loads(answer)["error"]["type"], "rate_limit_error")
        self.assertEqual(self.server.get("/health")[0], 200)
        for s in connections:
            s.close()
        self.idle()
        self.server.complete(prompt=STORY, max_tokens=1)
        self.refused(400, [str(SEQUENCES + QUEUE)], "/v1/completions", {"prompt": STORY, "n": SEQUENCES + QUEUE + 1})
        self.refused(400, [str(SEQUENCES + QUEUE)], "/v1/completions", {"prompt": [STORY] * 5, "n": 2})

    def test_a_reader_that_takes_nothing_holds_nobody_up(self):
        slow = socket.socket()
        self.addCleanup(slow.close)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(self.server.address)
        body = json.dumps({"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.server.wait_until(lambda m: m["vllm:num_requests_running"] > 0)
        self.server.complete(prompt=STORY, max_tokens=8)
        self.idle()

    def test_a_long_prompt_holds_a_running_stream_up_by_one_item_at_a_time(self):
        """An item is a layer of a chunk of the prompt: while one is read, a stream gets a token for each of them."""
        layers = 30
        connection, answer = self.long_request()
        with contextlib.closing(connection):
            pieces = events(answer)
            next(pieces)
            tokens, ended = [], threading.Event()

            def read():
                for chunk in pieces:
                    if ended.is_set() or chunk == "[DONE]":
                        return
                    tokens.append(chunk)

            reader = threading.Thread(target=read)
            reader.start()
            before = len(tokens)
            self.server.complete(prompt=list(range(7000, 7900)), max_tokens=1)
            during = len(tokens) - before
            ended.set()
            reader.join(TIMEOUT_S)
        self.assertGreaterEqual(during, layers)

    def test_state_shows_who_runs_and_what_is_held(self):
        connection, answer = self.long_request()
        answer.readline()
        end = time.monotonic() + 30
        running = lambda s: s["sequences"] and s["sequences"][0]["state"] == "running"
        while not running(state := self.server.get("/state")[1]) and time.monotonic() < end:
            time.sleep(0.01)
        answer.close()
        connection.close()
        sequence = state["sequences"][0]
        self.assertEqual(set(sequence), {"id", "state", "prompt_tokens", "prefilled", "output_tokens", "sparse",
                                         "resident_blocks", "total_blocks", "age_seconds"})
        self.assertEqual((sequence["state"], sequence["prefilled"]), ("running", sequence["prompt_tokens"]))
        self.assertGreater(state["tiers"]["fast"]["used"], 0)
        self.assertLessEqual(state["tiers"]["fast"]["used"], state["tiers"]["fast"]["limit"])
        self.assertEqual(state["limits"]["max_sequences"], SEQUENCES)
        self.assertEqual(set(state["latency"]), {"ttft", "inter_token", "e2e"})
        self.idle()
        self.assertEqual(self.server.get("/state")[1]["sequences"], [])

    def test_metrics_have_the_names_that_dashboards_know(self):
        self.server.complete(prompt=STORY, max_tokens=3)
        _, headers, body = self.server.request("GET", "/metrics")
        self.assertIn("text/plain", headers["Content-Type"])
        text = body.decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                     "generation_tokens_total", "time_to_first_token_seconds_bucket", "num_preemptions_total",
                     "time_per_output_token_seconds_sum", "inter_token_latency_seconds_count",
                     "e2e_request_latency_seconds_bucket", "prefix_cache_queries_total", "prefix_cache_hits_total"):
            self.assertRegex(text, rf'(?m)^vllm:{name}{{[^}}]*model_name="{re.escape(self.server.model)}"[^}}]*}} ')
        self.assertRegex(text, r'vllm:request_success_total\{[^}]*finished_reason="length"')
        for name in ("oasis_fetched_bytes_total", "oasis_prefetch_hits_total", "oasis_prefetch_misses_total",
                     "oasis_prefetch_refused_total", "oasis_agreement_ratio", "oasis_accepted_length",
                     "oasis_fast_tier_used_bytes", "oasis_capacity_blocks", "oasis_stage_seconds_total"):
            self.assertRegex(text, rf"(?m)^{name}{{")


class Log(ServeTest):
    FLAGS = ["--context", 256, "--log-format", "json"]

    def test_a_line_a_request_without_the_prompt(self):
        self.server.complete(prompt="a secret of mine", max_tokens=3, ignore_eos=True)
        self.refused(400, [], "/v1/completions", b"{")
        self.server.stop()
        lines = [json.loads(line) for line in self.server.log]
        self.assertEqual([line["status"] for line in lines], [200, 400])
        self.assertEqual((lines[0]["endpoint"], lines[0]["output_tokens"], lines[0]["finish"]),
                         ("/v1/completions", 3, "length"))
        self.assertGreater(lines[0]["seconds"], lines[0]["ttft_seconds"])
        self.assertNotIn("secret", "".join(self.server.log))


class Keys(ServeTest):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("# ours\nfirst-key\n\nsecond-key\n")
            file.flush()
            cls.FLAGS = ["--context", 256, "--api-key-file", file.name]
            super().setUpClass()

    def test_only_a_key_opens_the_api(self):
        body = {"prompt": "a", "max_tokens": 1}
        for value in (None, "", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyy", "Basic first-key", "first-key",
                      "Bearer # ours", "Bearer " + "x" * 20000):
            headers = {} if value is None else {"Authorization": value}
            self.refused(401, ["Authorization"], "/v1/completions", body, headers)
        for key in ("first-key", "second-key"):
            self.assertEqual(self.server.post("/v1/completions", body, {"Authorization": "Bearer " + key})[0], 200)
        self.assertEqual(self.server.request("GET", "/v1/models")[0], 401)
        for path in ("/health", "/ready", "/metrics", "/state"):
            self.assertEqual(self.server.request("GET", path)[0], 200)


class Shutdown(ServeTest):
    FLAGS = ["--context", 512]

    @classmethod
    def setUpClass(cls):
        pass  # each test ends its own server

    def start_and_terminate(self, *flags):
        """The chunks of a stream during which the server is told to end, and the exit code."""
        server = Server(OASIS, *self.FLAGS, *flags)
        self.addCleanup(server.stop)
        idle = socket.create_connection(server.address, timeout=TIMEOUT_S)
        self.addCleanup(idle.close)
        connection, answer = server.open_stream("/v1/completions",
                                                {"prompt": STORY, "max_tokens": 400, "ignore_eos": True})
        with contextlib.closing(connection):
            chunks = events(answer)
            got = [next(chunks)]
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
                socket.create_connection(server.address, timeout=5).close()
                self.fail("a new connection was taken")
            got += chunks
        return got, server.process.wait(TIMEOUT_S)

    def test_sigterm_lets_running_requests_finish(self):
        chunks, code = self.start_and_terminate()
        self.assertEqual((chunks[-1], finish_of(chunks), code), ("[DONE]", {0: "length"}, 0))
        self.assertGreater(len(chunks), 300)

    def test_what_does_not_finish_in_time_is_cancelled_and_told(self):
        begin = time.monotonic()
        chunks, code = self.start_and_terminate("--drain-seconds", "0")
        self.assertEqual((chunks[-1], code), ("[DONE]", 0))
        self.assertIn("shutting down", chunks[-2]["error"]["message"])
        self.assertLess(time.monotonic() - begin, 60)


@unittest.skipUnless(MODEL.exists(), "needs the small model")
class CapacityFile(unittest.TestCase):
    """The prefix cache from one server to the next."""
    PROMPT = list(range(3000, 3400))
    WHOLE = 25 * 16 - 16  # the last token is always read

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "kv"
        self.index = pathlib.Path(folder.name) / "kv.index"

    def serve(self, *flags):
        server = Server(OASIS, "--context", 512, "--max-sequences", 2, "--capacity-file", f"{self.file}:160MiB",
                        "--capacity-memory", "64MiB", *flags)
        self.addCleanup(server.stop)
        return server

    def ask(self, server, prompt=None):
        """(tokens that came from the cache, the answer's text)"""
        answer = server.complete(prompt=prompt or self.PROMPT, max_tokens=8, ignore_eos=True)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]

    def run_once(self, *flags, prompt=None):
        server = self.serve(*flags)
        try:
            return self.ask(server, prompt)
        finally:
            self.assertEqual(server.stop(), 0, server.log[-5:])

    def change_byte(self, path, at):
        with open(path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))

    def test_a_prompt_comes_from_the_file_after_a_restart(self):
        server = self.serve()
        self.assertEqual(self.ask(server)[0], 0)
        cached, text = self.ask(server)
        self.assertEqual(cached, self.WHOLE)
        server.stop()
        self.assertEqual(oct(self.index.stat().st_mode & 0o777), "0o600")
        self.assertEqual(self.run_once(), (self.WHOLE, text))
        self.assertEqual(self.run_once(), (self.WHOLE, text))

    def test_a_damaged_block_is_a_miss_and_the_answer_the_same(self):
        _, text = self.run_once()
        for at in range(4096, self.file.stat().st_size, 4096 * 3):  # a byte of every part of every block, and more
            self.change_byte(self.file, at)
        server = self.serve()
        self.assertEqual(self.ask(server), (0, text))
        self.assertGreater(server.metrics()["oasis_tier_checksum_failures_total"], 0)
        server.stop()
        self.assertEqual(self.run_once()[0], self.WHOLE)

    def test_a_damaged_index_costs_what_it_names(self):
        self.run_once()
        size = self.index.stat().st_size
        self.change_byte(self.index, size - size // 25 * 3 // 2)  # in the last but one of 25 records
        self.assertEqual(self.run_once()[0], self.WHOLE - 16)
        self.change_byte(self.index, 20)  # the head
        self.assertEqual(self.run_once()[0], 0)
        self.index.write_bytes(self.index.read_bytes()[:-size // 10])
        self.assertLess(self.run_once()[0], self.WHOLE)

    def test_a_file_of_other_settings_counts_for_nothing(self):
        self.run_once("--block-size", "32")
        self.assertEqual(self.run_once("--top-k-blocks", "16")[0], 0)
        self.assertEqual(self.run_once("--top-k-blocks", "8")[0], 0)
        self.assertEqual(self.run_once("--top-k-blocks", "8")[0], self.WHOLE)

    # case 34
    def test_a_killed_server_costs_only_what_it_wrote(self):
        self.run_once()
        server = self.serve()
        self.ask(server, list(range(9000, 9400)))
        server.process.kill()
        server.process.wait(TIMEOUT_S)
        server = self.serve()
        self.assertEqual(self.ask(server, list(range(9000, 9400)))[0], 0)
        self.assertEqual(self.ask(server)[0], self.WHOLE)
        server.stop()


class Preemption(ServeTest):
    # case 6: room for one sequence and a half
    FLAGS = ["--context", 80, "--max-sequences", 2, "--attention", "dense", "--fast-memory", "2900KiB"]

    def test_preempted_sequences_give_the_tokens_of_a_large_pool(self):
        prompts = [list(range(1000, 1034)), list(range(2000, 2034))]
        fields = {"max_tokens": 35, "ignore_eos": True}
        small = in_threads(*[lambda p=p: self.server.complete(prompt=p, **fields) for p in prompts])
        preemptions = self.server.metrics()["vllm:num_preemptions_total"]
        state = self.server.get("/state")[1]
        self.assertLess(state["tiers"]["fast"]["pages"], 10)
        self.assertGreaterEqual(preemptions, 1)
        self.idle()
        large = Server(OASIS, "--context", 80, "--max-sequences", 2, "--attention", "dense")
        self.addCleanup(large.stop)
        for prompt, answer in zip(prompts, small):
            self.assertEqual(large.complete(prompt=prompt, **fields)["choices"], answer["choices"])


class WorkingSet(ServeTest):
    FLAGS = ["--context", 1024, "--max-sequences", 2, "--attention", "sparse", "--top-k-blocks", 16, "--draft", "ngram",
             "--accept-drafts"]

    def test_a_sparse_sequence_shows_what_moves(self):
        text = self.server.post("/tokenize", {"prompt": "The cat sat on the mat and the dog lay by the door. " * 60})
        body = {"prompt": text[1]["tokens"][:780], "max_tokens": 200, "ignore_eos": True}
        connection, answer = self.server.open_stream("/v1/completions", body)
        with contextlib.closing(connection):
            stream = events(answer)
            next(stream)
            running = lambda s: s["sequences"] and s["sequences"][0]["state"] == "running"
            while not running(state := self.server.get("/state")[1]):
                time.sleep(0.01)
            last = list(stream)[-2]
        self.assertEqual(last["choices"][0]["finish_reason"], "length")
        sequence = state["sequences"][0]
        self.assertTrue(sequence["sparse"])
        self.assertGreater(sequence["total_blocks"], sequence["resident_blocks"])
        metrics = self.idle()
        self.assertGreater(metrics["oasis_prefetch_hits_total"], 0)
        self.assertGreater(metrics["oasis_fetched_bytes_total"], 0)
        self.assertGreater(metrics["oasis_agreement_ratio"], 0)
        usage = self.server.complete(**body)["usage"]
        accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
        self.assertGreater(accepted, 0)
        self.assertLess(accepted, usage["completion_tokens"])


class OpenAiClient(ServeTest):
    def setUp(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the openai package is not installed")
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        self.openai = openai

    def test_the_official_client_needs_no_change(self):
        model = self.client.models.list().data[0].id
        messages = [{"role": "user", "content": "Say hello."}]
        for _ in range(2):  # the second time behind a cached prompt, like the stream
            whole = self.client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        stream = self.client.chat.completions.create(model=model, messages=messages, max_completion_tokens=8, temperature=0,
                                                     stream=True, stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertIsInstance(usage.prompt_tokens_details.cached_tokens, int)
        done = self.client.completions.create(model=model, prompt=STORY, max_tokens=4, logprobs=2, echo=True)
        self.assertTrue(done.choices[0].text.startswith(STORY))
        with self.assertRaises(self.openai.BadRequestError):
            self.client.completions.create(model=model, prompt=STORY, max_tokens=-1)
        with self.assertRaises(self.openai.NotFoundError):
            self.client.completions.create(model="another", prompt=STORY)


if __name__ == "__main__":
    OASIS = sys.argv.pop(1)
    unittest.main()
