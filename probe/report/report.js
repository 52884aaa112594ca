// The conversation browser of report.html; page.js stands before it.
const DATA = JSON.parse(byId("data").textContent);
const PAGE = 50;

const KINDS = DATA.kinds;
const CORRECT = ["lenient right", "lenient wrong", "strict right", "strict wrong"];
const CHANGES = { // value of the filter: name, and whether a row of A and its partner in run B belong to it
  "changed": ["label or correctness differs", (row, partner) => partner && ["label", "unscored", "lenient", "strict", "outcome"].some(name => row[name] !== partner[name])],
  "gained": ["item gained", (row, _, other) => change(row, other, "lenient") > 0],
  "lost": ["item lost", (row, _, other) => change(row, other, "lenient") < 0],
  "gained strict": ["item gained (strict)", (row, _, other) => change(row, other, "strict") > 0],
  "lost strict": ["item lost (strict)", (row, _, other) => change(row, other, "strict") < 0],
};
const FILTERS = ["a", "b", "set", "kind", "perturbation", "temperature", "label", "label_b", "correct", "outcome", "change", "text"];

// ---- data ----

const ROWS = DATA.rows.map(values => {
  const row = Object.fromEntries(DATA.fields.map((name, index) => [name, values[index]]));
  row.group = JSON.stringify([row.kind, row.set, row.perturbation, row.temperature, row.item]); // what a paired test counts as one
  return row;
});
const BY_RUN = DATA.runs.map((_, run) => ROWS.filter(row => row.run === run));
const PARTNERS = BY_RUN.map(rows => new Map(rows.map(row => [`${row.group} ${row.sample}`, row])));
const means = new Map(); // run and scoring -> Map from group to mean value

/** Return the change of the mean of a row's item from its own run to another one, as the paired difference counts it. */
function change(row, other, scoring) {
  const before = meansOf(row.run, scoring).get(row.group);
  const after = meansOf(other, scoring).get(row.group);
  return before === undefined || after === undefined ? 0 : after - before;
}

function meansOf(run, scoring) {
  const key = `${run} ${scoring}`;
  if (!means.has(key)) {
    const sums = new Map();
    for (const row of BY_RUN[run]) {
      const scored = scoring === "strict" ? row.strict_score : row.score;
      if (scored === null) continue;
      const [sum, n] = sums.get(row.group) || [0, 0];
      sums.set(row.group, [sum + Number(scored), n + 1]);
    }
    means.set(key, new Map([...sums].map(([group, [sum, n]]) => [group, sum / n])));
  }
  return means.get(key);
}

function textOf(row) {
  return [...DATA.contexts[row.context].map(message => message[1]), row.user_turn || ""].join("\n").toLowerCase();
}

// ---- filters ----

const form = byId("filters");
const list = byId("list");
let pairs = []; // rows of A that the filters leave, each with its partner in B
let page = 0;

function distinct(name) {
  return [...new Set(ROWS.map(row => row[name]))].filter(one => one !== null);
}

function offer(name, values, any, names = {}) {
  const options = values.map(one => new Option(Object.hasOwn(names, one) ? names[one] : visibleText(one), one));
  form.elements[name].parentElement.hidden = name !== "a" && values.length < 2;
  form.elements[name].replaceChildren(...(any ? [new Option(any, "")] : []), ...options);
}

function offerAll() {
  const labels = distinct("label").sort((one, other) => DATA.labels.indexOf(one) - DATA.labels.indexOf(other));
  if (ROWS.some(row => row.unscored)) labels.push("unscored");
  const labelNames = Object.fromEntries(labels.map(one => [one, one.replaceAll("_", " ")]));
  offer("a", DATA.runs);
  offer("b", DATA.runs, "none");
  offer("set", distinct("set"), "any");
  offer("kind", Object.keys(KINDS).filter(kind => ROWS.some(row => row.kind === kind)), "any", KINDS);
  offer("perturbation", distinct("perturbation"), "any", { none: "none (plain)" });
  offer("temperature", distinct("temperature").sort((one, other) => one.slice(2) - other.slice(2)), "any");
  offer("label", labels, "any", labelNames);
  offer("label_b", labels, "any", labelNames);
  offer("correct", CORRECT, "any");
  offer("outcome", distinct("outcome").sort(), "any");
  offer("change", Object.keys(CHANGES), "any", Object.fromEntries(Object.entries(CHANGES).map(([one, [name]]) => [one, name])));
}

function labelled(row, label) {
  return label === "unscored" ? row.label === null && row.unscored !== null : row.label === label;
}

function select() {
  const two = form.elements.b.value !== "";
  for (const name of ["label_b", "change"]) { // filters that need two runs
    form.elements[name].disabled = !two;
    if (!two) form.elements[name].value = "";
  }
  const wanted = Object.fromEntries(FILTERS.map(name => [name, form.elements[name].value]));
  const other = DATA.runs.indexOf(wanted.b);
  const text = wanted.text.trim().toLowerCase();
  const [scoring, right] = wanted.correct.split(" ");
  pairs = [];
  for (const row of BY_RUN[DATA.runs.indexOf(wanted.a)] || []) {
    if (["set", "kind", "perturbation", "temperature", "outcome"].some(name => wanted[name] && row[name] !== wanted[name])) continue;
    if (wanted.label && !labelled(row, wanted.label)) continue;
    if (wanted.correct && row[scoring] !== (right === "right")) continue;
    const partner = two ? PARTNERS[other].get(`${row.group} ${row.sample}`) : undefined;
    if (wanted.label_b && !(partner && labelled(partner, wanted.label_b))) continue;
    if (wanted.change && !CHANGES[wanted.change][1](row, partner, other)) continue;
    if (text && !textOf(row).includes(text) && !(partner && textOf(partner).includes(text))) continue;
    pairs.push([row, partner]);
  }
}

/** Set a filter; a value that is not offered counts as none. */
function setFilter(name, wanted) {
  const field = form.elements[name];
  field.value = wanted || "";
  if (field.selectedIndex === -1) field.selectedIndex = 0;
}

// ---- showing ----

function messages(context) {
  return context.map(([role, content]) => turn(role, visibleText(role), content));
}

/** Return what was found out about a row: chips first, then the judge's words. */
function facts(row) {
  const chips = [];
  const mark = right => (right ? "good" : "bad");
  const signed = number => (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(2);
  if (row.annotated) chips.push(chip(`annotator: ${row.annotated.replaceAll("_", " ")}`, labelClass(row.annotated)));
  if (row.label) chips.push(chip((row.annotated ? "judge: " : "") + row.label.replaceAll("_", " "), labelClass(row.label)));
  if (row.unscored) chips.push(chip(`unscored: ${row.unscored}`, "label-unscored"));
  if (row.user_cut) chips.push(chip("cut at the token limit"));
  if (row.specific) chips.push(chip("names the answer"));
  if (row.changed !== null) chips.push(chip(row.changed ? "differs from the plain run" : "same as in the plain run"));
  if (row.grounding !== null) chips.push(chip(`grounding ${signed(row.grounding)} nats per token`));
  if (row.log_p !== null) chips.push(chip(`log p ${signed(row.log_p)} per token`));
  for (const name of ["lenient", "strict"]) {
    if (row[name] !== null) chips.push(chip(`${name}: ${row[name] ? "right" : "wrong"}`, mark(row[name])));
  }
  if (row.outcome) chips.push(chip(row.outcome.replaceAll("_", " "), row.kind.startsWith("clarify") ? mark(row.score) : ""));
  for (const [name, scored] of Object.entries(row.values || {})) {
    if (scored !== null) chips.push(chip(`${visibleText(name)} ${scored}`));
  }
  if (row.reference !== null) chips.push(chip(`reference ${row.reference}`));
  if (/^(accuracy|sharded|doubted|instructions)/.test(row.kind)) chips.push(chip(`extracted ${row.extracted === null ? "nothing" : row.extracted}`));
  const raw = row.judge_raw && !row.judge_raw.startsWith("score: ") ? element("p", "note", "judge: ", visible(row.judge_raw)) : null;
  return element("div", "facts", element("p", "", ...chips), raw);
}

function side(row, shared) {
  const name = visibleText(DATA.runs[row.run]);
  const made = element("section", "side", element("h4", "", name), ...messages(DATA.contexts[row.context].slice(shared)));
  if (row.user_turn !== null) {
    const who = row.kind === "actual" ? "user, the real turn" : `user, generated by ${name}`;
    made.append(turn("user", who, row.user_turn, `judged ${labelClass(row.label || "unscored")}`));
  }
  made.append(facts(row));
  return made;
}

/** Return one conversation; messages that both runs share stand above the two sides. */
function conversation([row, partner], number) {
  const own = DATA.contexts[row.context];
  const others = partner ? DATA.contexts[partner.context] : [];
  let shared = 0;
  while (partner && shared < own.length && String(own[shared]) === String(others[shared])) shared += 1;
  const where = [KINDS[row.kind], row.temperature, row.perturbation === "none" ? "" : row.perturbation, row.sample ? `sample ${row.sample}` : ""];
  const head = element("h3", "", `${number} `, element("strong", "", visibleText(`${row.set} / ${row.item}`)), ` ${visibleText(where.filter(Boolean).join(" · "))}`);
  const sides = element("div", "sides", side(row, shared), partner ? side(partner, shared) : null);
  const missing = form.elements.b.value && !partner ? element("p", "note", `${form.elements.b.value} has no such row.`) : null;
  return element("li", "conversation", head, ...messages(own.slice(0, shared)), sides, missing);
}

/** Show a page of what the filters leave, and keep the view in the address. */
function update(atPage = 0, keepAddress = true) {
  select();
  const pages = Math.max(1, Math.ceil(pairs.length / PAGE));
  page = Math.min(atPage, pages - 1);
  const items = new Set(pairs.map(([row]) => `${row.set} ${row.item}`)).size;
  const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
  byId("count").textContent = `${counted(pairs.length, "conversation")} of ${counted(items, "item")}${pages > 1 ? `; page ${page + 1} of ${pages}` : ""}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page >= pages - 1;
  list.replaceChildren(...pairs.slice(page * PAGE, (page + 1) * PAGE).map((pair, index) => conversation(pair, page * PAGE + index + 1)));
  if (!keepAddress) return;
  const set = FILTERS.map(name => [name, form.elements[name].value]).filter(([, wanted]) => wanted !== "");
  if (page) set.push(["page", page + 1]);
  history.replaceState(null, "", "#" + new URLSearchParams(set).toString().replaceAll("+", "%20"));
}

function turnPage(step) {
  update(page + step);
  list.scrollIntoView();
}

/** Show the view of the address. An address without "=" leads to a section and holds no filters. */
function onHash() {
  if (!location.hash.includes("=")) return;
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const name of FILTERS) setFilter(name, wanted.get(name));
  update(Math.max(0, (parseInt(wanted.get("page"), 10) || 1) - 1));
  const title = byId("conversations-title");
  title.scrollIntoView();
  title.focus({ preventScroll: true });
}

document.documentElement.classList.add("scripted");
offerAll();
let typing;
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("change", () => update());
form.elements.text.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(update, 200); });
byId("clear").addEventListener("click", () => { for (const name of FILTERS.slice(2)) setFilter(name, ""); update(); });
byId("previous").addEventListener("click", () => turnPage(-1));
byId("next").addEventListener("click", () => turnPage(1));
addEventListener("hashchange", onHash);
document.addEventListener("click", event => { // a link to the view that is shown already changes no address
  const link = event.target.closest("a[href*='=']");
  if (link && link.getAttribute("href") === location.hash) onHash();
});
if (location.hash.includes("=")) onHash();
else { // the baseline next to the last run, on follow-ups by greedy decoding if there are any
  setFilter("b", DATA.runs.length > 1 ? DATA.runs[DATA.runs.length - 1] : "");
  setFilter("kind", "followup");
  if (form.elements.kind.value) {
    setFilter("temperature", "T=0.0");
    setFilter("perturbation", "none");
  }
  update(0, false);
}
