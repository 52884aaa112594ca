// The conversation browser of report.html and the choice of bars; page.js stands before it.
const DATA = JSON.parse(byId("data").textContent);
const PAGE = 50;

const KINDS = {
  "followup": "follow-up",
  "accuracy": "accuracy",
  "clarify underspecified": "clarify, a given missing",
  "clarify complete": "clarify, complete",
  "actual": "real user turn",
};
const CORRECT = {
  "lenient right": row => row.lenient === true,
  "lenient wrong": row => row.lenient === false,
  "strict right": row => row.strict === true,
  "strict wrong": row => row.strict === false,
};
const VERDICTS = ["label", "unscored", "lenient", "strict", "outcome"];
const CHANGES = { // what is offered, and whether a row of A and what B has beside it, in run `other`, belong to it
  "changed": ["label or correctness differs", (row, beside) => beside && VERDICTS.some(name => row[name] !== beside[name])],
  "gained": ["item gained", (row, beside, other) => moved(row, other, "lenient") > 0],
  "lost": ["item lost", (row, beside, other) => moved(row, other, "lenient") < 0],
  "gained strict": ["item gained (strict)", (row, beside, other) => moved(row, other, "strict") > 0],
  "lost strict": ["item lost (strict)", (row, beside, other) => moved(row, other, "strict") < 0],
};
const FILTERS = ["a", "b", "set", "kind", "perturbation", "temperature", "label", "label_b", "correct", "outcome", "change", "text"];

// ---- data ----

const ROWS = DATA.rows.map(([cell, item, sample, context, ...said]) => {
  const [run, kind, set, perturbation, temperature] = DATA.cells[cell];
  const row = { run, kind, set, perturbation, temperature, item, sample, context };
  DATA.fields.forEach((name, index) => { row[name] = said[index]; });
  row.group = JSON.stringify([kind, set, perturbation, temperature, item]); // what a paired test counts as one
  return row;
});
const BY_RUN = DATA.runs.map((_, run) => ROWS.filter(row => row.run === run));
const pairs = new Map(); // run -> Map from group and sample to row
const means = new Map(); // run and scoring -> Map from group to mean value
const searchable = new Map(); // context -> its text in lower case

/** What counts in a row: true, false, or null where it says nothing. */
function value(row, scoring) {
  if (row.kind === "accuracy") return row[scoring];
  if (row.kind === "clarify underspecified") return row.asked;
  if (row.kind === "clarify complete") return row.outcome === "answered" || row.outcome === "truncated";
  return row.label === null ? null : row.label === DATA.genuine;
}

/** How far the mean of a row's item went from its own run to another one, as the paired difference counts it. */
function moved(row, other, scoring) {
  const before = meansOf(row.run, scoring).get(row.group);
  const after = meansOf(other, scoring).get(row.group);
  return before === undefined || after === undefined ? 0 : after - before;
}

function meansOf(run, scoring) {
  const key = `${run} ${scoring}`;
  if (!means.has(key)) {
    const sums = new Map();
    for (const row of BY_RUN[run]) {
      const found = value(row, scoring);
      if (found === null) continue;
      const [sum, n] = sums.get(row.group) || [0, 0];
      sums.set(row.group, [sum + Number(found), n + 1]);
    }
    means.set(key, new Map([...sums].map(([group, [sum, n]]) => [group, sum / n])));
  }
  return means.get(key);
}

/** The row of another run for the same item, decoding and sample. */
function partner(row, run) {
  if (!pairs.has(run)) pairs.set(run, new Map(BY_RUN[run].map(one => [`${one.group} ${one.sample}`, one])));
  return pairs.get(run).get(`${row.group} ${row.sample}`);
}

function textOf(row) {
  if (!searchable.has(row.context)) {
    const contents = DATA.contexts[row.context].map(index => DATA.messages[index][1]);
    searchable.set(row.context, contents.join("\n").toLowerCase());
  }
  return `${searchable.get(row.context)}\n${(row.user_turn || "").toLowerCase()}`;
}

// ---- filters ----

const form = byId("filters");
const list = byId("list");
let found = [];
let page = 0;

function distinct(name) {
  return [...new Set(ROWS.map(row => row[name]))].filter(one => one !== null);
}

function offer(name, values, any, names = {}) {
  const select = form.elements[name];
  select.replaceChildren();
  if (any) select.append(new Option(any, ""));
  for (const one of values) select.append(new Option(Object.hasOwn(names, one) ? names[one] : visibleText(one), one));
}

function offerAll() {
  const labels = [...DATA.labels, ...distinct("label").filter(one => !DATA.labels.includes(one)).sort()];
  const given = labels.filter(one => ROWS.some(row => row.label === one));
  const known = ROWS.some(row => row.unscored) ? [...given, "unscored"] : given;
  const named = Object.fromEntries(known.map(one => [one, one.replaceAll("_", " ")]));
  const temperatures = distinct("temperature").sort((one, other) => one.slice(2) - other.slice(2));
  offer("a", DATA.runs);
  offer("b", DATA.runs, "none");
  offer("set", distinct("set"), "any");
  offer("kind", Object.keys(KINDS).filter(kind => ROWS.some(row => row.kind === kind)), "any", KINDS);
  offer("perturbation", distinct("perturbation"), "any", { none: "none (plain)" });
  offer("temperature", temperatures, "any", { "T=0.0": "T=0.0 (greedy)" });
  offer("label", known, "any", named);
  offer("label_b", known, "any", named);
  offer("correct", ROWS.some(row => row.lenient !== null) ? Object.keys(CORRECT) : [], "any");
  offer("outcome", distinct("outcome").sort(), "any");
  offer("change", Object.keys(CHANGES), "any", Object.fromEntries(Object.entries(CHANGES).map(([one, [name]]) => [one, name])));
}

/** A filter that cannot say anything now is switched off; what it was set to is forgotten. */
function enable() {
  const two = form.elements.b.value !== "";
  for (const name of ["label_b", "change"]) {
    form.elements[name].disabled = !two;
    if (!two) form.elements[name].value = "";
  }
  for (const name of ["set", "kind", "perturbation", "label", "correct", "outcome"]) {
    form.elements[name].disabled = form.elements[name].options.length < 2;
  }
}

function labelled(row, label) {
  return label === "unscored" ? row.label === null && row.unscored !== null : row.label === label;
}

function select() {
  const wanted = Object.fromEntries(FILTERS.map(name => [name, form.elements[name].value]));
  const other = DATA.runs.indexOf(wanted.b);
  const text = wanted.text.trim().toLowerCase();
  found = [];
  for (const row of BY_RUN[DATA.runs.indexOf(wanted.a)] || []) {
    if (["set", "kind", "perturbation", "temperature", "outcome"].some(name => wanted[name] && row[name] !== wanted[name])) continue;
    if (wanted.label && !labelled(row, wanted.label)) continue;
    if (wanted.correct && !CORRECT[wanted.correct](row)) continue;
    const beside = other < 0 ? undefined : partner(row, other);
    if (wanted.label_b && !(beside && labelled(beside, wanted.label_b))) continue;
    if (wanted.change && !CHANGES[wanted.change][1](row, beside, other)) continue;
    if (text && !textOf(row).includes(text) && !(beside && textOf(beside).includes(text))) continue;
    found.push([row, beside]);
  }
}

// ---- the address ----

function writeHash() {
  const set = FILTERS.filter(name => form.elements[name].value !== "").map(name => [name, form.elements[name].value]);
  if (page) set.push(["page", page + 1]);
  history.replaceState(null, "", "#" + new URLSearchParams(set).toString().replaceAll("+", "%20"));
}

function readHash() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const name of FILTERS) setFilter(name, asked.get(name));
  page = Math.max(0, (parseInt(asked.get("page"), 10) || 1) - 1);
}

/** A value that is not offered counts as none. */
function setFilter(name, wanted) {
  const field = form.elements[name];
  field.value = wanted || "";
  if (field.selectedIndex === -1) field.selectedIndex = 0;
}

// ---- showing ----

function messages(indices) {
  return indices.map(index => turn(DATA.messages[index][0], visibleText(DATA.messages[index][0]), DATA.messages[index][1]));
}

function signed(number) {
  return (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(2);
}

/** What was found out about a row: chips first, then the judge's words. */
function facts(row) {
  const chips = [];
  const mark = right => (right ? ["right", "good"] : ["wrong", "bad"]);
  if (row.label) chips.push(chip(row.label.replaceAll("_", " "), labelClass(row.label)));
  if (row.unscored) chips.push(chip(`unscored: ${row.unscored}`, "label-unscored"));
  if (row.user_cut) chips.push(chip("cut at the token limit"));
  if (row.specific) chips.push(chip("names the answer"));
  if (row.changed !== null) chips.push(chip(row.changed ? "differs from the plain run" : "same as in the plain run"));
  if (row.grounding !== null) chips.push(chip(`grounding ${signed(row.grounding)} nats per token`));
  if (row.log_p !== null) chips.push(chip(`log p ${signed(row.log_p)} per token`));
  if (row.lenient !== null) chips.push(chip(`lenient: ${mark(row.lenient)[0]}`, mark(row.lenient)[1]));
  if (row.strict !== null) chips.push(chip(`strict: ${mark(row.strict)[0]}`, mark(row.strict)[1]));
  if (row.outcome) chips.push(chip(row.outcome.replaceAll("_", " "), row.kind.startsWith("clarify") ? mark(value(row, "lenient"))[1] : ""));
  if (row.reference !== null) chips.push(chip(`reference ${row.reference}`));
  if (row.kind === "accuracy") chips.push(chip(`extracted ${row.extracted === null ? "nothing" : row.extracted}`));
  const raw = row.judge_raw ? element("p", "judge", element("span", "who", "judge"), " ", visible(row.judge_raw)) : null;
  return element("div", "facts", element("p", "chips", ...chips), raw);
}

function side(row, skipped) {
  const name = visibleText(DATA.runs[row.run]);
  const made = element("section", "side", element("h4", "", name), ...messages(DATA.contexts[row.context].slice(skipped)));
  if (row.user_turn !== null) {
    const who = row.kind === "actual" ? "user, the real turn" : `user, generated by ${name}`;
    made.append(turn("user", who, row.user_turn, `judged ${labelClass(row.label || "unscored")}`));
  }
  made.append(facts(row));
  return made;
}

/** One conversation; messages that both runs share stand above the two sides. */
function conversation([row, beside], number) {
  const own = DATA.contexts[row.context];
  const others = beside ? DATA.contexts[beside.context] : [];
  let shared = 0;
  while (beside && shared < own.length && own[shared] === others[shared]) shared += 1;
  const parts = [KINDS[row.kind] || row.kind, row.temperature, row.perturbation === "none" ? null : row.perturbation];
  if (row.sample) parts.push(`sample ${row.sample}`);
  const where = parts.filter(part => part !== null).join(" · ");
  const head = element("h3", "", `${number} `, element("span", "id", visibleText(`${row.set} / ${DATA.items[row.item]}`)), element("small", "", visibleText(where)));
  const sides = element("div", "sides", side(row, shared), beside ? side(beside, shared) : null);
  const missing = form.elements.b.value && !beside ? element("p", "note", `${form.elements.b.value} has no such row.`) : null;
  const made = element("li", "conversation", head, ...messages(own.slice(0, shared)), sides, missing);
  made.tabIndex = -1;
  return made;
}

function show() {
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  const start = page * PAGE;
  const items = new Set(found.map(([row]) => `${row.set} ${row.item}`)).size;
  const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
  const at = pages > 1 ? `; page ${page + 1} of ${pages}` : "";
  byId("count").textContent = `${counted(found.length, "conversation")} of ${counted(items, "item")}${at}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page >= pages - 1;
  list.replaceChildren(...found.slice(start, start + PAGE).map((pair, index) => conversation(pair, start + index + 1)));
}

/** Shows what the filters leave. */
function refresh(atPage) {
  enable();
  page = atPage;
  select();
  show();
}

/** The same, and keeps it in the address. */
function update(atPage = 0) {
  refresh(atPage);
  writeHash();
}

function turnPage(step, last = false) {
  update(page + step);
  const target = last ? list.lastElementChild : list.firstElementChild;
  if (target) target.focus();
}

// ---- hands ----

/** Moves to the next or previous conversation, over the end of a page too. */
function step(by) {
  const current = document.activeElement.closest("#list > li");
  const target = current ? (by > 0 ? current.nextElementSibling : current.previousElementSibling) : list.firstElementChild;
  if (target) {
    target.focus();
    target.scrollIntoView({ block: "start" });
  } else if (current && !byId(by > 0 ? "next" : "previous").disabled) {
    turnPage(by, by < 0);
  }
}

function onKey(event) {
  // Letters belong to the field that is being written in.
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const actions = { j: () => step(1), k: () => step(-1), "/": () => form.elements.text.focus() };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
}

/** An address without "=" leads to a section and holds no filters. */
function onHash() {
  if (!location.hash.includes("=")) return;
  readHash();
  update(page);
  const title = byId("conversations-title");
  title.scrollIntoView();
  title.focus({ preventScroll: true });
}

/** A link to the view that is shown already changes no address, and still leads there. */
function onClick(event) {
  const link = event.target.closest("a[href*='=']");
  if (link && link.getAttribute("href") === location.hash) onHash();
}

function chooseBars() {
  const choice = byId("bars-choice");
  for (const figure of document.querySelectorAll("#bars > figure")) figure.hidden = figure.id !== choice.value;
}

function start() {
  startPage();
  if (byId("bars-choice")) {
    byId("bars-choice").addEventListener("change", chooseBars);
    chooseBars();
  }
  offerAll();
  let typing;
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("change", () => update());
  form.elements.text.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(update, 200); });
  byId("clear").addEventListener("click", () => { for (const name of FILTERS.slice(2)) setFilter(name, ""); update(); });
  byId("previous").addEventListener("click", () => turnPage(-1));
  byId("next").addEventListener("click", () => turnPage(1));
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  addEventListener("hashchange", onHash);
  if (location.hash.includes("=")) onHash();
  else startingView();
}

/** The baseline beside the last run, on follow-ups by greedy decoding, where there are any. */
function startingView() {
  setFilter("b", DATA.runs.length > 1 ? DATA.runs[DATA.runs.length - 1] : "");
  setFilter("kind", ROWS.some(row => row.kind === "followup") ? "followup" : "");
  if (form.elements.kind.value) setFilter("temperature", "T=0.0");
  if (form.elements.kind.value) setFilter("perturbation", "none");
  refresh(0);
}

start();
