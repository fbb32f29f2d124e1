// The page of the server: conversations, what is shown of them, and a drawing of contexts and links.
//
// Text of a model is only ever put into text nodes. The page's policy forbids the other ways, too:
// no HTML is parsed (trusted types), and nothing comes from, or goes to, another server.

const byId = (id) => document.getElementById(id);
const body = document.body;
const counted = new Intl.NumberFormat("en");
const rounded = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

/** Return an element; children are nodes, texts, and arrays of them, which may be long. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  for (const child of children.flat()) made.append(child);
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const icon = (name) =>
  drawn("svg", { class: "icon", "aria-hidden": "true" }, drawn("use", { href: `#i-${name}` }));

function action(name, label, onclick, shown = label) {
  return element(
    "button",
    { type: "button", className: "quiet", ariaLabel: label, title: label, onclick },
    icon(name),
    shown,
  );
}

// ---- What is kept in the browser ----------------------------------------------------------------

const CONVERSATION = "mtpcore.conversation.";
const SETTINGS = "mtpcore.settings";

function readStored(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null; // no storage, or nothing that this page wrote
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    notify("The browser has no room left for conversations: this one is not kept.");
  }
}

function storedConversations() {
  const found = [];
  for (const name of Object.keys(localStorage)) {
    const one = name.startsWith(CONVERSATION) ? readStored(name) : null;
    if (Array.isArray(one?.messages)) found.push(one);
  }
  return found.sort((one, other) => other.changed - one.changed);
}

const newConversation = () => ({
  id: Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join(""),
  title: "",
  changed: Date.now(),
  messages: [],
});

function keep(conversation) {
  conversation.changed = Date.now();
  if (conversation.isDeleted || !conversation.messages.length) return;
  store(CONVERSATION + conversation.id, conversation);
}

// ---- Requests -----------------------------------------------------------------------------------

class Refusal extends Error {
  constructor(message, status = 0, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds after which asking again may help
  }
}

let keyDialog = null;

/** Ask for the server's key; several requests that need it wait for one answer. */
function askForKey() {
  const dialog = byId("key");
  keyDialog ??= new Promise((resolve, reject) => {
    const field = dialog.querySelector("input");
    const isWrong = sessionStorage.getItem("mtpcore.key") !== null;
    byId("key-note").textContent =
      `${isWrong ? "This key is wrong. " : ""}A key is kept until this tab is closed.`;
    field.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    dialog.onclose = () => {
      keyDialog = null;
      if (dialog.returnValue !== "use")
        return reject(new Refusal("The server asks for a key.", 401));
      sessionStorage.setItem("mtpcore.key", field.value);
      resolve();
    };
  });
  return keyDialog;
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("mtpcore.key");
  const headers = key === null ? {} : { authorization: `Bearer ${key}` };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer.");
  }
  if (response.status === 401) {
    await askForKey();
    return ask(path, options);
  }
  if (!response.ok) {
    const found = await response.json().catch(() => null);
    const message = found?.error?.message ?? `The server answered with status ${response.status}.`;
    throw new Refusal(message, response.status, Number(response.headers.get("retry-after") ?? 0));
  }
  return response;
}

/** Yield the events of a stream; one that ends before its end is an error. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      part = { done: true };
    }
    if (part.done) throw new Refusal("The connection ended before the answer did.");
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue; // a comment: the server is still there
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.message);
      yield event;
    }
  }
}

// ---- Settings -----------------------------------------------------------------------------------

const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "frequency_penalty",
  "presence_penalty",
  "seed",
  "max_tokens",
];
const settingsForm = byId("settings").querySelector("form");
let settings = readStored(SETTINGS) ?? {};

/** Return how a request is drafted; undefined: as the server does. */
function speculation() {
  if (settings.drafts === "off") return false;
  const asked = {};
  if (settings.drafts === "auto") asked.draft = "auto";
  if (settings.drafts === "fixed") asked.draft = Number(settings.draft || 4);
  if (settings.drafter) asked.drafter = settings.drafter;
  if (settings.p_min) asked.p_min = Number(settings.p_min);
  return Object.keys(asked).length ? asked : undefined;
}

function optionsOfRequest() {
  const others = readJson("others", false, "The other fields in the settings are no JSON object.");
  const options = { speculative: speculation() };
  for (const name of NUMBERS) if (settings[name]) options[name] = Number(settings[name]);
  if (settings.stop) options.stop = settings.stop.split("\n").filter(Boolean);
  return { ...options, ...others, stream: true, timings_per_token: true, n: undefined };
}

/** Return a setting that is written as JSON: an array or an object. */
function readJson(name, isArray, refusal) {
  if (!settings[name]) return undefined;
  let value = null;
  try {
    value = JSON.parse(settings[name]);
  } catch {
    // said below
  }
  if (typeof value !== "object" || value === null || Array.isArray(value) !== isArray)
    throw new Refusal(refusal);
  return value;
}

function showSettings() {
  for (const field of settingsForm.elements)
    if (field.name) field.value = settings[field.name] ?? "";
  showFieldsThatMatter();
}

function showFieldsThatMatter() {
  settingsForm.elements.draft.disabled = settingsForm.elements.drafts.value !== "fixed";
}

settingsForm.addEventListener("input", ({ target }) => {
  showFieldsThatMatter();
  if (!target.checkValidity()) return;
  settings = { ...settings, [target.name]: target.value };
  store(SETTINGS, settings);
});

byId("reset").onclick = () => {
  settings = {};
  store(SETTINGS, settings);
  showSettings();
};

// ---- Texts and their drafts ---------------------------------------------------------------------

// Which characters were drafted is kept as lengths of runs, plain and drafted in turn, plain first.

function extendRuns(runs, length, isDrafted) {
  if (!runs.length) runs.push(0);
  const isSame = (runs.length % 2 === 0) === isDrafted;
  if (isSame) runs[runs.length - 1] += length;
  else runs.push(length);
}

function draftedFlags(runs, length) {
  const flags = new Uint8Array(length);
  let end = 0;
  runs.forEach((run, i) => {
    if (i % 2) flags.fill(1, end, end + run);
    end += run;
  });
  return flags;
}

/** Append characters to a node, drafted ones in spans; `at` gives each one's place in the source. */
function appendText(parent, text, at, flags, begin = 0, end = text.length) {
  while (begin < end) {
    const isDrafted = flags[at[begin]];
    let until = begin + 1;
    while (until < end && flags[at[until]] === isDrafted) until += 1;
    const part = text.slice(begin, until);
    parent.append(isDrafted ? element("span", { className: "drafted" }, part) : part);
    begin = until;
  }
}

// ---- Markdown -----------------------------------------------------------------------------------

// Blocks are found in lines {text, from}, where `from` is the place of the line's first character
// in the source: so each character of a block still knows whether it was drafted.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])(\s+|$)/;
const DELIMITER = /^:?-+:?$/;
const DEEPEST = 12; // blocks in blocks; what is deeper stays text

const shorten = (line, n) => ({ text: line.text.slice(n), from: line.from + n });

function linesOf(text) {
  let from = 0;
  return text.split("\n").map((line) => {
    const found = { text: line, from };
    from += line.length + 1;
    return found;
  });
}

function isTable(lines, i) {
  return (
    lines[i].text.includes("|") &&
    i + 1 < lines.length &&
    lines[i + 1].text.includes("|") &&
    lines[i + 1].text.includes("-") &&
    cellsOf(lines[i + 1]).every(({ text }) => DELIMITER.test(text))
  );
}

/** Return the text of a heading without marks that close it: "# Title #". */
function titleOf(text) {
  const title = text.trimEnd();
  let end = title.length;
  while (title[end - 1] === "#") end -= 1;
  return isSpace(title[end - 1]) ? title.slice(0, end).trimEnd() : title;
}

/** Return blocks {kind, lines, ...} of lines, in order. */
function blocksOf(lines, depth = 0) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    const { text } = lines[i];
    const begin = i;
    const fence = FENCE.exec(text);
    if (!text.trim()) {
      i += 1;
    } else if (fence) {
      const close = new RegExp(`^ {0,3}\\${fence[1][0]}{${fence[1].length},}\\s*$`);
      i += 1;
      while (i < lines.length && !close.test(lines[i].text)) i += 1;
      blocks.push({ kind: "code", language: fence[2].trim(), lines: lines.slice(begin + 1, i) });
      i += 1;
    } else if (HEADING.test(text)) {
      const [, marks, rest] = HEADING.exec(text);
      const { from } = shorten(lines[i], text.length - rest.length);
      blocks.push({ kind: "heading", level: marks.length, lines: [{ text: titleOf(rest), from }] });
      i += 1;
    } else if (RULE.test(text)) {
      blocks.push({ kind: "rule", lines: [lines[i]] });
      i += 1;
    } else if (depth < DEEPEST && QUOTE.test(text)) {
      while (i < lines.length && QUOTE.test(lines[i].text)) i += 1;
      const inner = lines
        .slice(begin, i)
        .map((line) => shorten(line, QUOTE.exec(line.text)[0].length));
      blocks.push({ kind: "quote", lines: inner });
    } else if (depth < DEEPEST && ITEM.test(text)) {
      const list = { kind: "list", start: ITEM.exec(text)[3], items: [], lines: [] };
      i = readList(lines, i, list);
      list.lines = lines.slice(begin, i);
      blocks.push(list);
    } else if (isTable(lines, i)) {
      while (i < lines.length && lines[i].text.includes("|")) i += 1;
      blocks.push({ kind: "table", lines: lines.slice(begin, i) });
    } else {
      i += 1;
      while (i < lines.length && !beginsBlock(lines, i)) i += 1;
      blocks.push({ kind: "paragraph", lines: lines.slice(begin, i) });
    }
  }
  return blocks;
}

function beginsBlock(lines, i) {
  const { text } = lines[i];
  return (
    !text.trim() ||
    [FENCE, HEADING, RULE, QUOTE, ITEM].some((mark) => mark.test(text)) ||
    isTable(lines, i)
  );
}

/** Read the items of a list from line `i` on; return the line after it. */
function readList(lines, i, list) {
  const [, margin, , number] = ITEM.exec(lines[i].text);
  const isNumbered = number !== undefined;
  let indent = 0;
  while (i < lines.length) {
    const { text } = lines[i];
    const found = ITEM.exec(text);
    const isDeeper = /^\s*/.exec(text)[0].length >= indent && indent > 0;
    if (found && !(isDeeper && list.items.length) && !RULE.test(text)) {
      if (found[1].length < margin.length || (found[3] !== undefined) !== isNumbered) break;
      indent = found[0].length || 2;
      list.items.push([shorten(lines[i], found[0].length)]);
    } else if (!text.trim()) {
      const next = lines[i + 1]?.text ?? "";
      if (!/^\s*/.exec(next)[0].length && !ITEM.test(next)) break;
      list.items.at(-1).push(lines[i]);
    } else if (isDeeper) {
      list.items.at(-1).push(shorten(lines[i], indent));
    } else if (lines[i - 1].text.trim() && !beginsBlock(lines, i)) {
      list.items.at(-1).push(lines[i]);
    } else {
      break;
    }
    i += 1;
  }
  return i;
}

/** Return the characters of lines as one text, with the place of each in the source. */
function joined(lines, separator = "\n") {
  let text = "";
  const at = [];
  lines.forEach((line, i) => {
    if (i) {
      text += separator;
      at.push(line.from - 1);
    }
    text += line.text;
    for (let j = 0; j < line.text.length; j += 1) at.push(line.from + j);
  });
  return { text, at };
}

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const isWord = (character) => /[\p{L}\p{N}]/u.test(character ?? " ");
const isSpace = (character) => /^\s?$/.test(character ?? "");

/** Append a text with its emphasis and code; a mark without its fellow stays as it is. */
function appendInline(parent, { text, at }, flags, begin = 0, end = text.length) {
  const lost = new Set(); // marks that are not closed in what is left
  let plain = begin;
  let i = begin;
  const flush = (until) => appendText(parent, text, at, flags, plain, until);
  const take = (made, from, to, next, isCode) => {
    flush(i);
    if (isCode) appendText(made, text, at, flags, from, to);
    else appendInline(made, { text, at }, flags, from, to);
    parent.append(made);
    i = next;
    plain = next;
  };
  while (i < end) {
    if (text[i] === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "") && i + 1 < end) {
      flush(i);
      plain = i + 1;
      i += 2;
      continue;
    }
    if (text[i] === "`") {
      const mark = /^`+/.exec(text.slice(i, i + 32))[0];
      const close = lost.has(mark) ? -1 : closingOf(text, mark, i + mark.length, end);
      if (close >= 0) {
        take(element("code"), i + mark.length, close, close + mark.length, true);
      } else {
        lost.add(mark);
        i += mark.length;
      }
      continue;
    }
    const [mark, tag] = MARKS.find(([one]) => text.startsWith(one, i)) ?? [];
    const opens =
      mark &&
      i + mark.length < end &&
      !isSpace(text[i + mark.length]) &&
      !(mark[0] === "_" && isWord(text[i - 1]));
    if (opens && !lost.has(mark)) {
      const close = closingOf(text, mark, i + mark.length, end);
      if (close >= 0) {
        take(element(tag), i + mark.length, close, close + mark.length, false);
        continue;
      }
      lost.add(mark);
    }
    i += mark?.length ?? 1;
  }
  flush(end);
}

/** Return where a mark closes what it opened before `from`, or -1. */
function closingOf(text, mark, from, end) {
  for (
    let i = text.indexOf(mark, from);
    i >= 0 && i + mark.length <= end;
    i = text.indexOf(mark, i + 1)
  ) {
    const isLonger = text[i - 1] === mark[0] || text[i + mark.length] === mark[0];
    if (i === from) continue;
    if (mark[0] === "`") {
      if (!isLonger) return i;
    } else if (
      !isSpace(text[i - 1]) &&
      (mark.length > 1 || !isLonger) &&
      !(mark[0] === "_" && isWord(text[i + mark.length]))
    ) {
      return i;
    }
  }
  return -1;
}

function cellsOf(line) {
  const cells = [];
  let begin = 0;
  for (let i = 0; i <= line.text.length; i += 1) {
    if (i < line.text.length && (line.text[i] !== "|" || line.text[i - 1] === "\\")) continue;
    const cell = line.text.slice(begin, i);
    const lead = cell.length - cell.trimStart().length;
    cells.push({ text: cell.trim(), from: line.from + begin + lead });
    begin = i + 1;
  }
  if (!cells[0].text) cells.shift();
  if (cells.length && !cells.at(-1).text) cells.pop();
  return cells;
}

const SCROLLS = { tabIndex: 0, role: "group", ariaLabel: "Code" }; // by keyboard, too

const builders = {
  paragraph: ({ lines }, flags) => inlineElement("p", lines, flags),
  heading: ({ lines, level }, flags) => inlineElement(`h${Math.min(level + 2, 5)}`, lines, flags),
  rule: () => element("hr"),
  quote: ({ lines }, flags, depth) => appendBlocks(element("blockquote"), lines, flags, depth + 1),
  list: ({ items, start }, flags, depth) => {
    const made = start === undefined ? element("ul") : element("ol", { start: Number(start) });
    for (const item of items) {
      const entry = element("li");
      const isTight =
        blocksOf(item, depth + 1).filter(({ kind }) => kind === "paragraph").length < 2;
      appendBlocks(entry, item, flags, depth + 1);
      for (const child of isTight ? [...entry.children] : [])
        if (child.tagName === "P") unwrap(child);
      made.append(entry);
    }
    return made;
  },
  table: ({ lines }, flags) => {
    const [head, , ...rows] = lines;
    const row = (line, tag) =>
      element(
        "tr",
        {},
        cellsOf(line).map((cell) => inlineElement(tag, [cell], flags)),
      );
    return element(
      "div",
      { className: "scrolls", ...SCROLLS, ariaLabel: "Table" },
      element(
        "table",
        {},
        element("thead", {}, row(head, "th")),
        element(
          "tbody",
          {},
          rows.map((line) => row(line, "td")),
        ),
      ),
    );
  },
  code: ({ lines, language }, flags) => {
    const code = element("code");
    const { text, at } = joined(lines);
    appendText(code, text, at, flags);
    const caption = element(
      "figcaption",
      {},
      language || "text",
      action("copy", "Copy code", () => copy(text), "Copy"),
    );
    return element("figure", { className: "code" }, caption, element("pre", SCROLLS, code));
  },
};

function unwrap(node) {
  while (node.firstChild) node.before(node.firstChild);
  node.remove();
}

function inlineElement(tag, lines, flags) {
  const made = element(tag);
  appendInline(
    made,
    joined(
      lines.map((line, i) =>
        i < lines.length - 1 ? line : { ...line, text: line.text.trimEnd() },
      ),
    ),
    flags,
  );
  return made;
}

function appendBlocks(parent, lines, flags, depth = 0) {
  for (const block of blocksOf(lines, depth))
    parent.append(builders[block.kind](block, flags, depth));
  return parent;
}

/** Shows a text that grows; blocks that are finished are made once. */
class MarkdownView {
  constructor(root) {
    this.root = root;
    this.blocks = []; // {name, node} of what is shown
  }

  show(text, runs) {
    const flags = draftedFlags(runs, text.length);
    const blocks = blocksOf(linesOf(text));
    blocks.forEach((block, i) => {
      const last = block.lines.at(-1);
      const name = last
        ? `${block.kind} ${block.lines[0].from} ${last.from + last.text.length}`
        : "";
      const shown = this.blocks[i];
      if (name && shown?.name === name) return;
      const node = builders[block.kind](block, flags, 0);
      if (shown) shown.node.replaceWith(node);
      else this.root.append(node);
      this.blocks[i] = { name, node };
    });
    for (const { node } of this.blocks.splice(blocks.length)) node.remove();
  }
}

// ---- Messages -----------------------------------------------------------------------------------

const log = byId("log");
const messages = byId("messages");
const field = byId("text");
let server = { isRaw: false, name: "" };
let open = newConversation();
let writing = null; // {conversation, message, controller} of the answer that is being written
let isAtEnd = true;
const unfolded = new WeakSet(); // messages whose reasoning is shown

log.addEventListener("scroll", () => {
  isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  byId("latest").hidden = isAtEnd;
});
byId("latest").onclick = () => {
  isAtEnd = true;
  scrollToEnd();
  field.focus();
};

function scrollToEnd() {
  if (isAtEnd) log.scrollTop = log.scrollHeight;
  byId("latest").hidden = isAtEnd;
}

class AnswerView {
  constructor(message) {
    this.message = message;
    this.said = element("div", { className: "said", ariaLive: "polite" });
    this.markdown = new MarkdownView(this.said);
    this.thought = element("div");
    this.summary = element("span");
    this.reasoning = element(
      "details",
      {
        className: "reasoning",
        hidden: true,
        open: unfolded.has(message),
        ontoggle: () => (this.reasoning.open ? unfolded.add(message) : unfolded.delete(message)),
      },
      element("summary", {}, icon("fold"), this.summary),
      this.thought,
    );
    this.calls = element("div");
    this.error = element("div", { className: "error", role: "alert", hidden: true });
    this.acts = element("div", { className: "acts" });
    this.node = element(
      "article",
      {
        className: `message answer${server.isRaw ? " raw" : ""}`,
        ariaLabel: server.isRaw ? "Continuation" : "Answer",
      },
      this.reasoning,
      this.said,
      this.calls,
      this.error,
      this.acts,
    );
    this.refresh();
  }

  get isWriting() {
    return writing?.message === this.message;
  }

  refresh() {
    const { content, runs, reasoning, reasoningRuns } = this.message;
    this.said.ariaBusy = String(this.isWriting);
    this.said.classList.toggle("waits", this.isWriting && !content);
    if (server.isRaw) {
      this.said.replaceChildren();
      appendText(this.said, content, indices(content), draftedFlags(runs, content.length));
    } else {
      this.markdown.show(content, runs);
    }
    this.reasoning.hidden = !reasoning;
    if (reasoning) {
      this.summary.textContent = this.isWriting && !content ? "Reasoning …" : "Reasoning";
      this.thought.replaceChildren();
      appendText(
        this.thought,
        reasoning,
        indices(reasoning),
        draftedFlags(reasoningRuns, reasoning.length),
      );
    }
    if (this.isWriting) this.acts.replaceChildren();
  }

  /** Show what there is to be seen and done once the answer has ended. */
  finish() {
    this.refresh();
    const { message } = this;
    this.calls.replaceChildren(...callViews(message));
    this.error.hidden = !message.error;
    if (message.error) {
      const again = element(
        "button",
        { type: "button", onclick: () => regenerate(message) },
        "Try again",
      );
      this.error.replaceChildren(message.error, again);
    }
    const figures = message.figures
      ? [element("span", { className: "figures" }, spellFigures(message))]
      : [];
    this.acts.replaceChildren(
      action("copy", "Copy answer", () => copy(message.content), "Copy"),
      action("again", "Regenerate", () => regenerate(message)),
      ...figures,
    );
  }
}

const indices = (text) => Uint32Array.from({ length: text.length }, (_, i) => i);

const ENDS = { length: "ended by the limit", stopped: "stopped", tool_calls: "waits for results" };

function spellFigures({ figures, finish }) {
  const parts = [
    `${counted.format(figures.tokens)} tokens`,
    `${rounded.format(figures.rate)} tokens/s`,
  ];
  if (figures.drafted)
    parts.push(
      `${percent(figures.accepted, figures.drafted)} of ${counted.format(figures.drafted)} drafts accepted`,
    );
  if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" · ");
}

/** Return what shows the calls of a message, with their results or fields for them. */
function callViews(message) {
  const calls = message.calls ?? [];
  const isLast = open.messages.at(-1) === message;
  const views = calls.map((call) => {
    const result = open.messages.find((one) => one.role === "tool" && one.tool_call_id === call.id);
    const view = element(
      "section",
      { className: "call", ariaLabel: `Call of ${call.name}` },
      element("h2", {}, icon("tool"), "calls ", element("b", {}, call.name)),
      element("pre", {}, spellArguments(call.arguments)),
    );
    if (result) view.append(element("h2", {}, "result"), element("pre", {}, result.content));
    else if (isLast)
      view.append(element("label", {}, "Result", element("textarea", { name: call.id })));
    return view;
  });
  if (calls.length && isLast) {
    views.push(
      element(
        "button",
        { type: "button", className: "plain", onclick: () => sendResults(message, views) },
        "Send results",
      ),
    );
  }
  return views;
}

function spellArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function sendResults(message, views) {
  if (writing) return;
  message.calls.forEach((call, i) => {
    const content = views[i].querySelector("textarea").value;
    open.messages.push({ role: "tool", tool_call_id: call.id, name: call.name, content });
  });
  answer();
}

function questionView(message) {
  const said = element("div", { className: "said" }, message.content);
  const acts = element(
    "div",
    { className: "acts" },
    action("rename", "Edit", () => edit(message, node)),
    action("copy", "Copy message", () => copy(message.content), ""),
  );
  const node = element("article", { className: "message user", ariaLabel: "You" }, said, acts);
  return node;
}

/** Let a message be changed; what came after it is written anew. */
function edit(message, node) {
  if (writing) return;
  const text = element("textarea", { value: message.content, ariaLabel: "Edit message" });
  const cancel = () => {
    form.replaceWith(node);
    node.querySelector("button").focus();
  };
  const form = element(
    "form",
    {
      className: "message edit",
      onsubmit: (event) => {
        event.preventDefault();
        if (!text.value.trim() || writing) return;
        open.messages.splice(open.messages.indexOf(message), Infinity, {
          ...message,
          content: text.value,
        });
        answer();
        field.focus();
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          cancel();
        }
        sendOnEnter(event, form);
      },
    },
    text,
    element(
      "div",
      {},
      element("button", { type: "button", className: "plain", onclick: cancel }, "Cancel"),
      element("button", { className: "strong" }, "Send"),
    ),
  );
  node.replaceWith(form);
  text.style.height = `${Math.min(text.scrollHeight + 2, 400)}px`;
  text.focus();
}

function showConversation() {
  const { length } = open.messages;
  byId("empty").hidden = length > 0;
  const nodes = open.messages.flatMap((message) => {
    if (message.role === "tool") return [];
    if (message.role === "user") return [questionView(message)];
    const view = new AnswerView(message);
    if (writing?.message === message) writing.view = view;
    else view.finish();
    return [view.node];
  });
  messages.replaceChildren(...nodes);
  isAtEnd = true;
  scrollToEnd();
  document.title = open.title ? `${open.title} – mtpcore` : "mtpcore";
}

// ---- Answers ------------------------------------------------------------------------------------

function spellMessage(message) {
  if (message.role !== "assistant") return message;
  const spelled = { role: "assistant", content: message.content };
  if (message.reasoning) spelled.reasoning_content = message.reasoning;
  if (message.calls?.length) {
    spelled.tool_calls = message.calls.map(({ id, name, arguments: given }) => ({
      id,
      type: "function",
      function: { name, arguments: given },
    }));
  }
  return spelled;
}

function bodyOfRequest(conversation) {
  if (server.isRaw) {
    const prompt = conversation.messages.map(({ content }) => content).join("");
    return { max_tokens: 256, ...optionsOfRequest(), prompt };
  }
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const options = {
    tools: readJson("tools", true, "The tools in the settings are no JSON array."),
    ...optionsOfRequest(),
  };
  if (settings.thinking)
    options.chat_template_kwargs ??= { enable_thinking: settings.thinking === "on" };
  return { ...options, messages: [...system, ...conversation.messages.map(spellMessage)] };
}

/** Take an event of a stream into a message. */
function take(message, event) {
  const [choice] = event.choices ?? [];
  const isDrafted = event.mtpcore?.drafted ?? false;
  const said = choice?.delta?.content ?? choice?.text;
  const thought = choice?.delta?.reasoning_content;
  if (said) {
    message.content += said;
    extendRuns(message.runs, said.length, isDrafted);
  }
  if (thought) {
    message.reasoning += thought;
    extendRuns(message.reasoningRuns, thought.length, isDrafted);
  }
  for (const call of choice?.delta?.tool_calls ?? []) {
    message.calls.push({
      id: call.id,
      name: call.function.name,
      arguments: call.function.arguments,
    });
  }
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  const { timings } = event;
  if (timings) {
    message.figures = {
      tokens: timings.predicted_n,
      rate: timings.predicted_per_second,
      drafted: timings.draft_n ?? 0,
      accepted: timings.draft_n_accepted ?? 0,
    };
  }
}

/** Let the open conversation be answered, and show the answer while it is written. */
async function answer() {
  const conversation = open;
  const message = {
    role: "assistant",
    content: "",
    runs: [],
    reasoning: "",
    reasoningRuns: [],
    calls: [],
  };
  const controller = new AbortController();
  let request;
  try {
    request = bodyOfRequest(conversation);
  } catch (error) {
    message.error = error.message;
  }
  writing = { conversation, message, controller, view: null };
  conversation.messages.push(message);
  keep(conversation);
  showConversation();
  showList();
  showWriting();
  announce("The answer is being written");
  let isDue = false;
  let saved = performance.now();
  const refresh = () => {
    isDue = false;
    if (!writing || writing.message !== message) return;
    if (conversation === open) {
      writing.view.refresh();
      scrollToEnd();
    }
    showRates(message.figures);
  };
  try {
    if (request) {
      const path = server.isRaw ? "v1/completions" : "v1/chat/completions";
      const response = await ask(path, {
        method: "POST",
        body: JSON.stringify(request),
        signal: controller.signal,
      });
      for await (const event of eventsOf(response)) {
        take(message, event);
        if (!isDue) requestAnimationFrame(refresh);
        isDue = true;
        if (performance.now() - saved > 1000) {
          keep(conversation);
          saved = performance.now();
        }
      }
    }
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = spellError(error);
  }
  const { view } = writing;
  writing = null;
  keep(conversation);
  showWriting();
  showRates(null);
  showList();
  if (conversation === open) {
    view.finish();
    scrollToEnd();
  }
  announce(message.error ?? (message.finish === "stopped" ? "Stopped" : "The answer is finished"));
}

function spellError(error) {
  if (error.status !== 429) return error.message;
  const wait = error.wait ? ` Try again in ${error.wait} s.` : "";
  return `The server is busy: ${error.message}.${wait}`;
}

function regenerate(message) {
  if (writing) return;
  open.messages.splice(open.messages.indexOf(message));
  answer();
  field.focus();
}

function stop() {
  writing?.controller.abort();
  field.focus();
}

function showWriting() {
  body.classList.toggle("is-writing", writing !== null);
  byId("send").hidden = writing !== null;
  byId("stop").hidden = writing === null;
}

function showRates(figures) {
  const parts = [];
  if (figures) {
    parts.push(element("b", {}, rounded.format(figures.rate)), " tokens/s");
    if (figures.drafted)
      parts.push(" · ", element("b", {}, percent(figures.accepted, figures.drafted)), " accepted");
  }
  byId("rates").replaceChildren(...parts);
}

// ---- The field for messages ---------------------------------------------------------------------

function fitField() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function sendOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

field.addEventListener("input", fitField);
field.addEventListener("keydown", (event) => sendOnEnter(event, byId("composer")));
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (writing || !field.value.trim()) return;
  const content = field.value;
  if (!open.messages.length) {
    open.title = content.trim().split("\n")[0].slice(0, 80);
    history.pushState(null, "", `#${open.id}`);
  }
  open.messages.push({ role: "user", content });
  field.value = "";
  fitField();
  answer();
});
byId("stop").onclick = stop;

// ---- Conversations ------------------------------------------------------------------------------

function showList() {
  const all = storedConversations();
  byId("none").hidden = all.length > 0;
  byId("list").replaceChildren(
    ...all.map((one) => {
      const entry = element(
        "li",
        { className: one.id === open.id ? "is-open" : "" },
        element(
          "button",
          { type: "button", className: "open", onclick: () => choose(one.id), title: one.title },
          one.title || "Untitled",
        ),
        element(
          "button",
          {
            type: "button",
            className: "act",
            ariaLabel: `Rename ${one.title}`,
            onclick: () => rename(one, entry),
          },
          icon("rename"),
        ),
        element(
          "button",
          {
            type: "button",
            className: "act",
            ariaLabel: `Delete ${one.title}`,
            onclick: () => remove(one),
          },
          icon("delete"),
        ),
      );
      if (one.id === open.id) entry.firstChild.setAttribute("aria-current", "true");
      return entry;
    }),
  );
}

function choose(id) {
  if (location.hash !== `#${id}`) history.pushState(null, "", id ? `#${id}` : location.pathname);
  openConversation();
  toggleList(false);
  field.focus();
}

/** Open the conversation that the address names, or begin one. */
function openConversation() {
  const id = location.hash.slice(1);
  if (writing?.conversation.id === id) open = writing.conversation;
  else open = storedConversations().find((one) => one.id === id) ?? newConversation();
  showConversation();
  showList();
}

function rename(conversation, entry) {
  const input = element("input", {
    value: conversation.title,
    ariaLabel: "Name of the conversation",
  });
  let isCancelled = false;
  input.onblur = () => {
    if (!isCancelled && input.value.trim()) {
      const current = conversation.id === open.id ? open : conversation;
      current.title = input.value.trim();
      store(CONVERSATION + current.id, current);
    }
    showList();
  };
  input.onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.stopPropagation();
    event.preventDefault(); // else the key also presses the button that gets the focus
    isCancelled = event.key === "Escape";
    input.blur();
    byId("list").querySelector("[aria-current] ~ .act")?.focus();
  };
  entry.replaceChildren(input);
  input.focus();
  input.select();
}

function remove(conversation) {
  if (writing?.conversation.id === conversation.id) {
    writing.conversation.isDeleted = true;
    stop();
  }
  localStorage.removeItem(CONVERSATION + conversation.id);
  if (conversation.id === open.id) choose("");
  else showList();
  byId("begin").focus();
  notify("Conversation deleted.", "Undo", () => {
    store(CONVERSATION + conversation.id, conversation);
    choose(conversation.id);
  });
}

window.addEventListener("popstate", openConversation);
window.addEventListener("storage", (event) => {
  if (event.key === SETTINGS) settings = readStored(SETTINGS) ?? {};
  else if (event.key === CONVERSATION + open.id && writing?.conversation !== open)
    openConversation();
  else showList();
});
window.addEventListener("pagehide", () => {
  if (writing) keep(writing.conversation);
});

// ---- Contexts and links -------------------------------------------------------------------------

const WIDTH = 304;
const LEFT = 34;
const RIGHT = WIDTH - 34;
const LINE = 17;
const GAP = 26;

let counts = null; // the counts that were read last, and when
const drawing = byId("drawing");

/** Return functions that say how much flows a second, or did so far. */
function ratesBetween(before, after) {
  const seconds = before ? (after.at - before.at) / 1000 : 0;
  const rate = (read) => (seconds ? Math.max(read(after) - read(before), 0) / seconds : 0);
  const spell = (read, what) => {
    const now = rate(read);
    return now
      ? `${rounded.format(now)} ${what}/s`
      : `${counted.format(read(after))} ${what} so far`;
  };
  return { rate, spell };
}

/** Return the roles in the order in which they are drawn: what the target reads, it, what drafts. */
function rolesOf({ contexts, drafters, links }) {
  const all = [...new Set([...Object.keys(contexts), ...Object.keys(drafters)])];
  const read = all.filter(
    (role) => role !== "llm" && links.some(({ src, dst }) => src === role && dst === "llm"),
  );
  return [...read, "llm", ...all.filter((role) => role !== "llm" && !read.includes(role))];
}

/** Return what flows into each slot: links that join there bring the same rows. */
function flowsOf({ links }) {
  const flows = new Map();
  links.forEach(({ src, tap, dst, slot }, i) => {
    const found = flows.get(`${dst}.${slot}`);
    // Of several layers the numbers are enough: layer_input:2, 3, 5.
    if (found) found.taps += `, ${tap.split(":").at(-1)}`;
    else flows.set(`${dst}.${slot}`, { src, dst, taps: tap, rows: (after) => after.links[i].rows });
  });
  return [...flows.values()];
}

/** Return what a role's box says: its kind, then what it does. */
function linesOfRole(role, after, { spell }) {
  const context = after.contexts[role];
  const drafter = after.drafters[role];
  const lines = [];
  if (role === "llm") {
    lines.push({ text: `${context.program} in ${context.file}` });
    lines.push({ text: spell(({ stats }) => stats.tokens, "tokens"), isNow: true });
    lines.push({ text: spell(({ stats }) => stats.passes, "passes"), isNow: true });
  } else {
    lines.push({
      text: drafter
        ? `drafter ${drafter.name}, ${drafter.shape}`
        : `${context.graph}: ${context.program}`,
    });
  }
  for (const { src, dst, taps, rows } of flowsOf(after)) {
    if (dst !== role) continue;
    lines.push({ text: `reads ${src}.${taps}` });
    lines.push({ text: spell(rows, "rows"), isNow: true });
  }
  if (drafter) {
    lines.push({ text: spell(({ drafters }) => drafters[role].drafted, "drafts"), isNow: true });
    if (drafter.drafted)
      lines.push({ text: `${percent(drafter.accepted, drafter.drafted)} of them accepted` });
  }
  return lines;
}

function draw(after) {
  const rates = ratesBetween(counts, after);
  const boxes = {};
  const nodes = [];
  let top = 1;
  for (const role of rolesOf(after)) {
    const lines = linesOfRole(role, after, rates);
    const height = 38 + lines.length * LINE;
    boxes[role] = { top, middle: top + height / 2 };
    const title = role === "llm" ? "llm, the target" : role;
    nodes.push(
      drawn(
        "g",
        { class: role === "llm" ? "target" : "" },
        drawn("rect", { x: LEFT, y: top, width: RIGHT - LEFT, height, rx: 11 }),
        drawn("text", { x: LEFT + 14, y: top + 24, class: "role" }, title),
        ...lines.map(({ text, isNow }, i) =>
          drawn(
            "text",
            { x: LEFT + 14, y: top + 44 + i * LINE, class: isNow ? "now" : "" },
            text.length > 37 ? `${text.slice(0, 36)}…` : text,
          ),
        ),
      ),
    );
    top += height + GAP;
  }
  const paths = [];
  flowsOf(after).forEach(({ src, dst, rows }, i) => {
    const [from, to] = [boxes[src].middle + 5 * i, boxes[dst].middle];
    paths.push(lane(LEFT, Math.max(22 - 8 * i, 3), from, to, rates.rate(rows), "rows"));
  });
  Object.keys(after.drafters).forEach((role, i) => {
    const flow = rates.rate(({ drafters }) => drafters[role].drafted);
    paths.push(
      lane(
        RIGHT,
        Math.min(WIDTH - 22 + 8 * i, WIDTH - 3),
        boxes[role].middle,
        boxes.llm.middle + 7 * i,
        flow,
        "drafts",
      ),
    );
  });
  drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${top - GAP + 1}`);
  drawing.setAttribute("aria-label", spellDrawing(after, rates));
  const tip = {
    viewBox: "0 0 8 8",
    refX: 7,
    refY: 4,
    markerWidth: 6.5,
    markerHeight: 6.5,
    orient: "auto",
  };
  drawing.replaceChildren(
    drawn(
      "defs",
      {},
      drawn("marker", { id: "tip", ...tip }, drawn("path", { d: "M0 .5 8 4 0 7.500z" })),
    ),
    ...paths,
    ...nodes,
  );
}

/** Return a line from one box to another, around the boxes between them. */
function lane(side, x, from, to, flow, kind) {
  const turn = to > from ? 6 : -6;
  const inward = side < x ? -6 : 6;
  const d = `M${side} ${from}H${x + inward}Q${x} ${from} ${x} ${from + turn}V${to - turn}Q${x} ${to} ${x + inward} ${to}H${side}`;
  return drawn("path", { d, class: `${kind}${flow ? " flows" : ""}`, "marker-end": "url(#tip)" });
}

function spellDrawing(after, { spell }) {
  const flows = flowsOf(after).map(
    ({ src, dst, taps, rows }) => `${taps} of ${src} to ${dst}, ${spell(rows, "rows")}`,
  );
  const drafters = Object.entries(after.drafters).map(
    ([role, { name }]) =>
      `${role}, drafter ${name}, ${spell(({ drafters: all }) => all[role].drafted, "drafts")}`,
  );
  return `Contexts and links: ${["llm", ...drafters, ...flows].join("; ")}`;
}

function showCounts({ stats, drafters }) {
  const { accepted_per_position: positions, drafts } = stats;
  byId("positions").hidden = !drafts;
  byId("bars").replaceChildren(
    ...positions.map((n, i) =>
      element(
        "li",
        {},
        `draft ${i + 1}`,
        element("meter", { value: n / drafts, ariaLabel: `draft ${i + 1}` }),
        element("output", {}, percent(n, drafts)),
      ),
    ),
  );
  const totals = [
    ["Tokens of texts", counted.format(stats.tokens)],
    ["Passes of the target", counted.format(stats.passes)],
    ["Drafts verified", counted.format(stats.drafted)],
    ["Drafts accepted", counted.format(stats.accepted)],
  ];
  if (stats.drafted) totals.push(["Acceptance rate", percent(stats.accepted, stats.drafted)]);
  if (stats.passes) totals.push(["Tokens a pass", rounded.format(stats.tokens / stats.passes)]);
  if (!Object.keys(drafters).length) totals.push(["Drafter", "none"]);
  byId("totals").replaceChildren(
    ...totals.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

let nextReading = 0; // when the server may be asked again

async function readFlow() {
  if (!body.classList.contains("shows-flow") || document.hidden) {
    counts = null;
    return;
  }
  if (performance.now() < nextReading) return;
  nextReading = Infinity; // one at a time
  try {
    const response = await ask("cross");
    const after = { ...(await response.json()), at: performance.now() };
    draw(after);
    showCounts(after);
    counts = after;
    nextReading = 0;
  } catch {
    nextReading = performance.now() + 5000; // it is away; that is said where an answer is asked for
  }
}

// ---- Around it ----------------------------------------------------------------------------------

let noticeEnd = 0;

function notify(text, label = "", act = null, seconds = 8) {
  clearTimeout(noticeEnd);
  const button = byId("notice-act");
  byId("notice").hidden = false;
  byId("notice-text").textContent = text;
  button.hidden = !label;
  button.textContent = label;
  button.onclick = () => {
    byId("notice").hidden = true;
    act();
  };
  if (seconds) noticeEnd = setTimeout(() => (byId("notice").hidden = true), 1000 * seconds);
}

function announce(text) {
  byId("status").textContent = text;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS, other than this machine's, have no clipboard of that kind.
    const carrier = element("textarea", { value: text, className: "unseen" });
    const { activeElement } = document;
    body.append(carrier);
    carrier.select();
    document.execCommand("copy");
    carrier.remove();
    activeElement?.focus();
  }
  notify("Copied.");
}

const isNarrow = matchMedia("(max-width: 760px)");
const isFlowOver = matchMedia("(max-width: 1180px)");

function toggleList(isShown) {
  body.classList.toggle("shows-list", isShown);
  byId("show-list").ariaExpanded = String(isShown);
  document.querySelector("main").inert = isShown && isNarrow.matches;
  if (isShown) byId("begin").focus();
}

function toggleFlow(isShown, isAsked = true) {
  body.classList.toggle("shows-flow", isShown);
  byId("show-flow").ariaExpanded = String(isShown);
  if (!isAsked) return;
  readFlow();
  store("mtpcore.flow", isShown);
  if (!isShown) byId("show-flow").focus();
  else if (isFlowOver.matches) byId("close-flow").focus();
}

byId("begin").onclick = () => choose("");
byId("show-list").onclick = () => toggleList(true);
byId("close-list").onclick = () => {
  toggleList(false);
  byId("show-list").focus();
};
byId("shade").onclick = () => toggleList(false);
byId("show-flow").onclick = () => toggleFlow(!body.classList.contains("shows-flow"));
byId("close-flow").onclick = () => toggleFlow(false);
byId("show-settings").onclick = () => {
  showSettings();
  byId("settings").showModal();
};
byId("toggle-drafts").onclick = ({ target }) => {
  const isHidden = body.classList.toggle("hides-drafts");
  target.textContent = isHidden ? "show" : "hide";
  target.ariaPressed = String(!isHidden);
};
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  field.focus();
};
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (body.classList.contains("shows-list")) byId("close-list").click();
  else if (byId("flow").contains(document.activeElement) && isFlowOver.matches) toggleFlow(false);
  else if (writing) stop();
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && dialog.id === "settings") dialog.close();
  });
}

function explain() {
  const drafted = element("span", { className: "drafted" }, "looks like this");
  const lead = server.isRaw
    ? "This file has no chat template, so the model goes on where your text ends. "
    : "";
  byId("greeting").textContent = server.isRaw ? "Begin a text" : "What would you like to ask?";
  byId("explanation").replaceChildren(
    `${lead}Text that a drafter guessed, and the model agreed with, `,
    drafted,
    ". Drafts change how fast an answer comes, and never what it says.",
  );
  field.placeholder = server.isRaw ? "Begin a text" : `Message ${server.name}`;
}

function showServer(props, cross) {
  server = { isRaw: !props.chat_template, name: props.model_alias };
  body.classList.toggle("is-raw", server.isRaw);
  byId("model").textContent = server.name;
  byId("guarantee").textContent =
    props.guarantee === "exact"
      ? "the same text with and without drafts"
      : `guarantee: ${props.guarantee}`;
  byId("foot").textContent = props.build_info;
  for (const [name, value] of Object.entries(props.default_generation_settings.params)) {
    const input = settingsForm.elements[name];
    if (input && value !== null) input.placeholder = String(value);
  }
  settingsForm.elements.max_tokens.placeholder = server.isRaw ? "256" : "no limit";
  const names = new Set(Object.values(cross.drafters).map(({ name }) => name));
  settingsForm.elements.drafter.replaceChildren(
    element("option", { value: "" }, "All"),
    ...Array.from(names, (name) => element("option", { value: name }, name)),
  );
}

async function begin() {
  toggleFlow(!isFlowOver.matches && readStored("mtpcore.flow") !== false, false);
  openConversation();
  field.focus();
  try {
    const [props, cross] = await Promise.all([ask("props"), ask("cross")]);
    showServer(await props.json(), await cross.json());
  } catch (error) {
    notify(error.message, "Try again", begin, 0);
    return;
  }
  explain();
  showConversation();
  readFlow();
  setInterval(readFlow, 1000);
}

export { MarkdownView };

begin();
