#!/usr/bin/env python3
"""The operator's page in a browser: what it shows, both themes, the keyboard, errors, and that it asks nobody else.

Usage: [OASIS_BINARY=PATH] page_test.py [unittest arguments]
Most tests run against a small stand-in for the server; with OASIS_BINARY some run against the program itself too.
Skipped without playwright (pip install playwright) or Chromium (apt-get install chromium).
"""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import threading
import time
import unittest

from client import MODEL, SOURCE, Server

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
OASIS = os.environ.get("OASIS_BINARY")
PAGE = SOURCE / "src" / "oasis" / "serve" / "page"
SEQUENCES = 1000
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>"


def joined_page():
    """index.html with its style sheet and scripts in their place, as page.cmake makes it."""
    page = (PAGE / "index.html").read_text()
    read = lambda match: (PAGE / match[1]).read_text()
    page = re.sub(r'<link rel="stylesheet" href="(\S+)">', lambda m: f"<style>\n{read(m)}</style>", page)
    return re.sub(r'<script src="(\S+)"></script>', lambda m: f"<script>\n{read(m)}</script>", page)


def sequence(i):
    state = ("waiting" if i > 900 else "preempted" if i > 880 else "prefill" if i % 50 == 0 else "running")
    prompt = 200 + 37 * i % 7000
    prefilled = {"waiting": 0, "prefill": prompt // 3}.get(state, prompt)
    blocks = prefilled // 16
    return {"id": i, "state": state, "prompt_tokens": prompt, "prefilled": prefilled,
            "output_tokens": i % 300 if prefilled == prompt else 0, "sparse": blocks > 128,
            "resident_blocks": min(blocks, 128), "total_blocks": blocks, "age_seconds": i / 10}


def state(tick, sequences=SEQUENCES):
    """An answer of /state after so many seconds: 250 tokens/s, 3 MiB/s over the link, 90% hits."""
    window = {"p50": 0.021, "p90": 0.05, "p99": 0.2, "samples": 100}
    totals = {name: 0 for name in
              ("requests_failed requests_cancelled preemptions cached_tokens prefill_seconds predict_seconds select_seconds "
               "transfer_seconds fetched_blocks admitted refused_cap refused_absent demand drafts_proposed draft_seconds "
               "prefix_evictions").split()}
    totals |= {"requests_finished": 7, "prompt_tokens": 1000 * tick, "output_tokens": 250 * tick, "steps": 10 * tick,
               "fetched_bytes": 3 * tick << 20, "hits": 90 * tick, "misses": 10 * tick, "agreement": 0.87, "cover": 0.93,
               "decode_seconds": 0.5 * tick, "wait_seconds": 0.1 * tick, "drafts_compared": 100 * tick,
               "drafts_right": 40 * tick, "drafts_accepted": 30 * tick}
    return {"version": "0.1.0", "model": "stand-in", "uptime_seconds": float(tick), "draining": False,
            "limits": {"max_sequences": 900, "max_queue": 1000, "max_context": 8192, "body_bytes": 1 << 24,
                       "top_k_blocks": 64, "resident_blocks": 128, "block_size": 16},
            "engine": {"drafter": "ngram"},
            "requests": {"running": 863, "prefilling": 17, "waiting": 100, "preempted": 20},
            "process": {"rss_bytes": 1 << 30},
            "tiers": {"fast": {"used": 600 << 20, "limit": 1 << 30, "peak": 700 << 20, "pages": 4000, "pages_free": 1200},
                      "capacity": {"used": 20 << 30, "limit": 32 << 30, "memory_bytes": 32 << 30, "file_bytes": 0,
                                   "blocks": 1000, "blocks_referenced": 500, "blocks_cached": 120, "blocks_reserved": 90,
                                   "file_bytes_written": 0, "file_bytes_read": 0}},
            "totals": totals, "latency": {"ttft": window, "inter_token": window, "e2e": window},
            "sequences": [sequence(i + 1) for i in range(sequences)]}


class StandIn(http.server.ThreadingHTTPServer):
    """The page, a /state whose counters go on by one second an answer, and a model that repeats what it is told.

    To "slowly" it answers without end; to "too much" with 429; with a key set, 401 for others.
    """
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.page = joined_page().encode()
        self.tick = 1000
        self.key = None
        self.sequences = SEQUENCES
        self.gone = threading.Event()  # a stream's client went away
        self.asked = []                # bodies of the chat
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # browsers drop connections


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json", headers=()):
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, message, headers=()):
        self.answer(status, json.dumps({"error": {"message": message}}).encode(), headers=headers)

    def do_GET(self):
        if self.path == "/":
            return self.answer(200, self.server.page, "text/html; charset=utf-8")
        if self.path == "/state":
            self.server.tick += 1
            return self.answer(200, json.dumps(state(self.server.tick, self.server.sequences)).encode())
        return self.error(404, "there is nothing here")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.error(401, "no valid API key")
        said = body["messages"][-1]["content"]
        if said == "too much":
            return self.error(429, "12 requests run or wait", [("Retry-After", "1")])
        self.server.asked.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.event({"choices": [{"delta": {"reasoning_content": "I repeat. "}}]})
            for piece in re.findall(r"\S+\s*", said) * (10000 if said == "slowly" else 1):
                self.event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
                time.sleep(0.02)
            if said == "fail":
                return self.event({"error": {"message": "the capacity file is full"}})
            self.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            self.event({"choices": [], "usage": {"completion_tokens": 42}})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.gone.set()

    def event(self, value):
        data = b"data: " + json.dumps(value).encode() + b"\n\n"
        half = len(data) // 2  # a reader must not expect whole events
        for part in (data[:half], data[half:]):
            self.wfile.write(part)
            self.wfile.flush()


# The lowest contrast of any text with what lies behind it, and that text.
CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const layers = (colors) => {
    pen.clearRect(0, 0, 1, 1);
    for (const color of colors) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => rgb.map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  let worst = {ratio: 21, text: ""};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.checkVisibility() || node.disabled) continue;
    const behind = [];
    for (let n = node; n; n = n.parentElement) behind.unshift(getComputedStyle(n).backgroundColor);
    const [a, b] = [layers(behind), layers([...behind, getComputedStyle(node).color])].map(luminance).sort();
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst.ratio) worst = {ratio, text};
  }
  return worst;
}"""

# Fields and buttons without a name for those who do not see them.
NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, svg, canvas, [role=img], [tabindex]")]
  .filter((n) => !n.getAttribute("aria-label") && !n.labels?.length && !(n.tagName === "BUTTON" && n.textContent.trim()))
  .map((n) => n.outerHTML.slice(0, 100))"""


@unittest.skipUnless(sync_playwright, "needs playwright: pip install playwright")
@unittest.skipUnless(pathlib.Path(CHROMIUM).exists(), "needs Chromium: apt-get install chromium")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        player = sync_playwright().start()
        cls.addClassCleanup(player.stop)
        cls.browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def open(self, url, **context):
        """A page of a fresh visitor; what it asks for and complains of is kept."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 720}, "locale": "en-GB", **context})
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(20000)
        self.requests, self.complaints = [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live", timeout=20000)
        return page

    def assert_quiet(self, url):
        """It asked no other server, and the browser complained of nothing."""
        self.assertEqual(self.complaints, [])
        foreign = [r for r in self.requests if not r.startswith((url + "/", "data:image/svg+xml,"))]
        self.assertEqual(foreign, [])

    @staticmethod
    def ask(page, text):
        page.fill("#chat-input", text)
        page.press("#chat-input", "Enter")


class PageTest(BrowserTest):
    def setUp(self):
        self.server = StandIn()
        self.addCleanup(self.server.stop)

    def open_page(self, **context):
        return self.open(self.server.url, **context)

    def test_rates_tiers_and_latencies_are_shown(self):
        page = self.open_page()
        tiles = page.locator("#tiles")
        for name, value in (("Output", "250"), ("Prompts", "1,000"), ("Link", "3.00 MiB"), ("Hit rate", "90.0%"),
                            ("Drafts right", "40.0%")):
            expect(tiles.locator("li", has_text=name).locator("strong")).to_have_text(value)
        expect(tiles).to_contain_text("agreement 0.87, cover 0.93")
        expect(page.locator("#tiers")).to_contain_text("600 MiB of 1.00 GiB")
        expect(page.locator("#tiers")).to_contain_text("500 blocks in use, 120 cached, 90 promised")
        expect(page.locator("#load")).to_contain_text("880 of 900, 17 in prefill")
        expect(page.locator("#load")).to_contain_text("100 of 1,000, 20 preempted")
        expect(page.locator("#load")).to_contain_text("decode 40%, wait for the link 10%")
        for row in ("First token", "Between tokens", "Whole request"):
            expect(page.get_by_role("row", name=f"{row} 21 ms 50 ms 0.20 s")).to_be_visible()
        self.assert_quiet(self.server.url)

    def test_a_thousand_sequences_are_a_scrolled_table_of_few_rows(self):
        page = self.open_page()
        expect(page.locator("#sequences-note")).to_contain_text("1,000 here")
        expect(page.locator("#sequences")).to_have_attribute("aria-rowcount", "1001")
        rows = page.locator("#sequences tr.sequence")
        self.assertLess(rows.count(), 40)
        s = sequence(1)
        expect(rows.first).to_contain_text(f"{s['resident_blocks']} of {s['total_blocks']}")
        reading = page.locator("tr.sequence", has=page.get_by_role("cell", name="50", exact=True))
        page.evaluate("byId('sequences-scroll').scrollTop = 45 * ROW_PX")
        expect(reading).to_contain_text("prefill")
        expect(reading).to_contain_text(f"{sequence(50)['prefilled']} of")
        page.locator("#sequences th button").first.click()
        page.evaluate("byId('sequences-scroll').scrollTop = 0")
        expect(rows.first).to_contain_text("waiting")
        expect(rows.first.locator("td").first).to_have_text("1000")
        self.assertTrue(page.evaluate("""() => byId("map").getContext("2d")
            .getImageData(0, 0, byId("map").width, byId("map").height).data.some((byte) => byte > 0)"""))
        self.assert_quiet(self.server.url)

    def test_no_sequence_leaves_an_empty_table(self):
        self.server.sequences = 0
        page = self.open_page()
        expect(page.locator("#sequences-note")).to_contain_text("0 here")
        self.assertEqual(page.locator("#sequences tr.sequence").count(), 0)
        self.assert_quiet(self.server.url)

    def test_the_theme_follows_the_system_and_the_button_and_is_remembered(self):
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = self.open_page(color_scheme="dark").evaluate(ground)
        page = self.open_page(color_scheme="light")
        light = page.evaluate(ground)
        self.assertNotEqual(light, dark)
        page.get_by_role("button", name="dark theme").click()
        self.assertEqual(page.evaluate(ground), dark)
        page.reload()
        expect(page.locator("#connection")).to_have_text("live")
        self.assertEqual(page.evaluate(ground), dark)
        page.get_by_role("button", name="light theme").click()
        self.assertEqual(page.evaluate(ground), light)

    def test_text_stands_out_in_both_themes(self):
        for scheme in ("light", "dark"):
            page = self.open_page(color_scheme=scheme)
            self.ask(page, "too much")
            self.ask(page, "hello")
            expect(page.locator("#chat-note")).to_contain_text("stop")
            for top in (0, 900 * 26):  # all states of a sequence
                page.evaluate(f"byId('sequences-scroll').scrollTop = {top}")
                page.wait_for_timeout(200)
                worst = page.evaluate(CONTRAST)
                self.assertGreaterEqual(worst["ratio"], 4.5, f"{scheme}: {worst['text']}")

    def test_it_fits_a_small_screen_and_a_phone(self):
        width = "document.documentElement.scrollWidth - innerWidth"
        page = self.open_page()
        page.wait_for_timeout(300)
        self.assertLessEqual(page.evaluate(width), 0)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollHeight - innerHeight"), 0)
        self.assertGreaterEqual(page.evaluate("byId('sequences-scroll').clientHeight"), 130)
        phone = self.open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        phone.wait_for_timeout(300)
        self.assertLessEqual(phone.evaluate(width), 0)
        expect(phone.locator("tr.sequence").first).to_contain_text("running")

    def test_everything_is_reached_and_used_by_the_keyboard(self):
        page = self.open_page()
        reached = []
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("""() => {
              const n = document.activeElement, style = getComputedStyle(n);
              return [n.id || n.textContent, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
            }"""))
        seen = [name for name, outlined in reached if outlined]
        for name in ("theme", "sequences-scroll", "Id", "State", "Resident blocks", "Age", "chat-clear", "chat-log",
                     "chat-input", "chat-tokens", "chat-temperature", "chat-send", "api-key"):
            self.assertIn(name, seen)
        page.focus("#sequences-scroll")
        page.keyboard.press("End")
        expect(page.locator("tr.sequence").last.locator("td").first).to_have_text("1000")
        page.locator("#sequences th button", has_text="Output").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        expect(page.locator("#sequences th", has_text="Output")).to_have_attribute("aria-sort", "descending")

    def test_everything_has_a_name(self):
        page = self.open_page()
        expect(page.locator("tr.sequence").first).to_be_visible()
        self.assertEqual(page.evaluate(NAMELESS), [])
        page.get_by_role("textbox", name="Message to the model").fill("x")
        expect(page.get_by_role("img", name="Output over")).to_have_attribute("aria-label", re.compile("now 250 tokens/s"))

    def test_an_answer_streams_in_and_is_text_never_html(self):
        page = self.open_page()
        self.ask(page, HOSTILE)
        answer = page.locator(".message.assistant")
        expect(answer).to_have_text("I repeat. " + HOSTILE)
        expect(page.locator("#chat-note")).to_contain_text("42 tokens")
        self.assertEqual(page.locator("#chat-log img, #chat-log b").count(), 0)
        self.ask(page, "again")
        expect(answer.nth(1)).to_have_text("I repeat. again")
        self.assertEqual([m["content"] for m in self.server.asked[1]["messages"]], [HOSTILE, HOSTILE, "again"])
        page.get_by_role("button", name="New").click()
        self.assertEqual(answer.count(), 0)
        self.assert_quiet(self.server.url)

    def test_stop_ends_the_answer_and_keeps_what_came(self):
        for stop in (lambda page: page.get_by_role("button", name="Stop").click(), lambda page: page.keyboard.press("Escape")):
            self.server.gone.clear()
            page = self.open_page()
            self.ask(page, "slowly")
            expect(page.locator(".message.assistant")).to_contain_text("slowlyslowly")
            stop(page)
            expect(page.locator("#chat-note")).to_contain_text("stopped")
            expect(page.get_by_role("button", name="Send")).to_be_enabled()
            self.assertTrue(self.server.gone.wait(10), "the server still streams")

    def test_errors_of_the_chat_are_shown_and_the_question_is_kept(self):
        self.server.key = "secret"
        page = self.open_page()
        self.ask(page, "hello")
        error = page.locator(".message.error")
        expect(error).to_contain_text("401: no valid API key")
        expect(page.locator("#chat-input")).to_have_value("hello")
        page.get_by_label("API key").fill("secret")
        page.press("#chat-input", "Enter")
        expect(page.locator(".message.assistant")).to_contain_text("hello")
        self.ask(page, "too much")
        expect(error.nth(1)).to_have_text("429: 12 requests run or wait (in 1 s)")
        self.ask(page, "fail")
        expect(error.nth(2)).to_have_text("the capacity file is full")

    def test_a_server_that_goes_away_and_comes_back_is_noticed(self):
        page = self.open_page()
        trouble = page.get_by_role("alert")
        page.route("**/state", lambda route: route.abort())
        expect(trouble).to_contain_text("does not answer")
        expect(page.locator("#connection")).to_have_text("no answer")
        page.unroute("**/state")
        page.route("**/state", lambda route: route.fulfill(status=503, json={"error": {"message": "starting"}}))
        expect(trouble).to_have_text("/state: 503: starting")
        page.unroute("**/state")
        self.server.tick = 3  # another process: its counters begin anew
        expect(page.locator("#connection")).to_have_text("live")
        expect(trouble).to_be_hidden()
        expect(page.locator("#tiles li", has_text="Output").locator("strong")).to_have_text("250")


@unittest.skipUnless(OASIS and MODEL.exists(), "needs OASIS_BINARY and the small model")
class ProgramTest(BrowserTest):
    def test_the_program_serves_the_page_and_the_page_reads_the_program(self):
        server = Server(OASIS, "--context", 1024, "--max-sequences", 2, "--attention", "sparse",
                        "--top-k-blocks", 16)
        self.addCleanup(server.stop)
        self.assertEqual(server.request("GET", "/")[2].decode(), joined_page())
        page = self.open(server.url)
        expect(page.locator("#model")).to_have_text(server.model)
        connection, answer = server.open_stream("/v1/completions", {"prompt": "Once " * 300, "max_tokens": 600,
                                                                    "ignore_eos": True})
        with contextlib.closing(connection):
            self.assertEqual(answer.status, 200)
            row = page.locator("tr.sequence").first
            expect(row).to_contain_text("running")
            expect(row).to_contain_text("sparse")
            expect(page.locator("#tiles li", has_text="Output").locator("strong")).to_have_text(re.compile(r"[1-9]"))
        self.ask(page, "Say hello.")
        expect(page.locator(".message.assistant")).to_have_text(re.compile(r"\w"))
        expect(page.locator("#chat-note")).to_contain_text(re.compile("tokens.*(stop|length)"), timeout=60000)
        self.assert_quiet(server.url)


if __name__ == "__main__":
    unittest.main()
