"use strict";
// A conversation with the model, over the API that everyone uses.

// The payloads of a stream of server-sent events, as they arrive.
async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split(/\r?\n/);
    text = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

class Chat {
  constructor() {
    this.messages = [];
    this.running = null;  // the AbortController of the answer under way
    this.log = byId("chat-log");
    this.note = byId("chat-note");
    this.input = byId("chat-input");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("chat-stop").addEventListener("click", () => this.stop());
    byId("chat-clear").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.log.replaceChildren();
    setText(this.note, "");
    this.input.focus();
  }

  add(role, text = "") {
    const shown = element("div", {class: `message ${role}`}, text);
    this.log.append(shown);
    this.log.scrollTop = this.log.scrollHeight;
    return shown;
  }

  request() {
    const tokens = byId("chat-tokens").valueAsNumber, temperature = byId("chat-temperature").valueAsNumber;
    return {
      messages: this.messages, stream: true, stream_options: {include_usage: true}, return_progress: true,
      ...(tokens > 0 ? {max_tokens: tokens} : {}), ...(temperature >= 0 ? {temperature} : {}),
    };
  }

  async send() {
    const question = this.input.value.trim();
    if (!question || this.running) return;
    const messages = this.messages;  // another list after "New"
    messages.push({role: "user", content: question});
    this.input.value = "";
    const asked = this.add("user", question);
    const answer = {content: "", shown: this.add("assistant"), begin: performance.now()};
    this.running = new AbortController();
    this.busy(true);
    try {
      await this.stream(answer, this.running.signal);
    } catch (error) {
      const stopped = error.name === "AbortError";
      answer.outcome = stopped ? "stopped" : "failed";
      const silent = error instanceof TypeError;
      const text = silent ? `the server does not answer (${error.message})` : error.message;
      if (!stopped && asked.isConnected) this.add("error", text);
    }
    this.running = null;
    this.busy(false);
    if (messages !== this.messages) return;
    setText(this.note, this.summary(answer));
    if (answer.content) {
      messages.push({role: "assistant", content: answer.content});
    } else {
      // Not part of the conversation: it may be sent again.
      messages.pop();
      if (!answer.shown.textContent) answer.shown.remove();
      if (answer.outcome === "failed" && !this.input.value) this.input.value = question;
    }
  }

  async stream(answer, signal) {
    setText(this.note, "waiting");
    const got = await fetch("v1/chat/completions", {
      method: "POST", signal, headers: {"Content-Type": "application/json", ...authorization()},
      body: JSON.stringify(this.request()),
    });
    if (!got.ok) throw new Error(await errorOf(got));
    for await (const payload of serverSentEvents(got.body)) {
      if (payload === "[DONE]") return;
      const chunk = JSON.parse(payload);
      if (chunk.error) throw new Error(chunk.error.message);
      this.take(answer, chunk);
    }
    throw new Error("the answer broke off: the server closed the connection");
  }

  take(answer, chunk) {
    if (chunk.usage) answer.usage = chunk.usage;
    if (chunk.prompt_progress) {
      setText(this.note, `reading: ${chunk.prompt_progress.processed} of ${chunk.prompt_progress.total}`);
    }
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) answer.outcome = choice.finish_reason;
    const {content, reasoning_content: reasoning, tool_calls: calls} = choice.delta ?? {};
    const text = (content ?? "") + (calls ? JSON.stringify(calls) : "");
    if (!text && !reasoning) return;
    answer.first ??= performance.now();
    answer.pieces = (answer.pieces ?? 0) + 1;
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    if (reasoning) {
      answer.thought ??= answer.shown.appendChild(element("span", {class: "reasoning"}));
      answer.thought.append(reasoning);
    }
    if (text) answer.shown.append(text);
    answer.content += content ?? "";
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
    setText(this.note, this.summary(answer));
  }

  summary({begin, first, pieces, usage, outcome}) {
    if (!first) return outcome ?? "waiting";
    const tokens = usage?.completion_tokens ?? pieces, seconds = (performance.now() - first) / 1e3;
    const rate = tokens > 1 && seconds > 0 ? `, ${formatCount((tokens - 1) / seconds)} tokens/s` : "";
    const end = outcome ? `, ${outcome}` : "";
    return `first after ${formatSeconds((first - begin) / 1e3)}, ${tokens} tokens${rate}${end}`;
  }

  busy(busy) {
    this.log.setAttribute("aria-busy", String(busy));
    byId("chat-stop").disabled = !busy;
    byId("chat-send").disabled = busy;
  }
}
