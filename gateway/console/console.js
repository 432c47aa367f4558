// The operator console: polls the admin API once a second and draws what it says. Text is set, never parsed as HTML.
"use strict";

const KEY = "prime-admin-key";
const POLL_MS = 1000;
const STALE_MS = 5000;
const $ = (id) => document.getElementById(id);

let lastAnswer = 0;
let timer = 0;
let asking = false;

// ── drawing ──

function node(tag, { text, cls, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (cls) made.className = cls;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const none = "–";
const number = (value, digits = 0) => (value === null || value === undefined ? none : value.toFixed(digits));
const percent = (value) => (value === null ? none : `${(value * 100).toFixed(1)} %`);

function seconds(value) {
  if (value === null || value === undefined) return none;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value / 60)} min`;
}

function short(value) {
  for (const [size, name] of [[1e6, "M"], [1e3, "k"]]) if (value >= size) return `${(value / size).toFixed(1)}${name}`;
  return `${value}`;
}

const cell = (text, bad = false) => node("td", { text, cls: bad ? "bad-text" : undefined });

function drawModels(models) {
  $("models").tBodies[0].replaceChildren(...models.map((model) => node("tr", {},
    node("th", { text: model.name, scope: "row" }),
    cell(number(model.requests_per_s, 1)),
    cell(number(model.failed), model.failed > 0),
    cell(number(model.refused), model.refused > 0),
    cell(seconds(model.first_event_s.p50)), cell(seconds(model.first_event_s.p90)), cell(seconds(model.first_event_s.p99)),
    cell(percent(model.hit_rate)),
    cell(number(model.completion_tokens_per_s, 1)),
    cell(number(model.tool_calls)),
    cell(number(model.tool_calls_wrong), model.tool_calls_wrong > 0),
    cell(number(model.tool_faults), model.tool_faults > 0))));
}

function bar(label, value, most, words) {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  const fill = node("i");
  fill.style.width = `${share * 100}%`;
  const cls = share >= 0.95 ? "bar bad" : share >= 0.8 ? "bar warn" : "bar";
  return node("div", { cls: "bar-line" }, node("span", { text: label }),
    node("div", { cls, role: "meter", "aria-label": label, "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, fill),
    node("b", { text: words }));
}

function chips(deployment) {
  const said = [];
  const chip = (text, cls) => said.push(node("span", { text, cls: `chip ${cls}` }));
  const breaker = deployment.breaker;
  if (breaker.state === "closed") chip("● breaker closed", "well");
  else chip(`▲ breaker ${breaker.state.replace("_", " ")}, probe in ${seconds(breaker.probe_in_s)}`, "bad-text");
  if (deployment.draining) chip(`■ draining (${deployment.drained_by.join(", ")})`, "warn-text");
  if (deployment.here.scarce) chip("▲ capacity scarce", "warn-text");
  if (deployment.overflow) chip("overflow", "soft");
  if (deployment.ramp_left_s > 0) chip(`ramp to ${deployment.ordered.weight}, ${seconds(deployment.ramp_left_s)} left`, "soft");
  else if (deployment.ordered.weight !== null) chip("weight ordered", "soft");
  return node("div", { cls: "chips" }, ...said);
}

const fact = (name, value, bad = false) => node("div", {}, node("dt", { text: name }), node("dd", { text: value, cls: bad ? "bad-text" : undefined }));

function poolSize(deployment, role) {
  const answering = deployment.frontends.filter((frontend) => frontend.answers);
  return answering.length ? Math.max(...answering.map((frontend) => frontend[role])) : null;
}

function severity(deployment) {
  const silent = deployment.frontends.every((frontend) => !frontend.answers);
  if (deployment.breaker.state !== "closed" || silent || poolSize(deployment, "decode") === 0) return "bad";
  return deployment.draining || deployment.here.scarce || poolSize(deployment, "prefill") === 0 ? "warn" : "";
}

function drawDeployment(deployment) {
  const held = deployment.held;
  const prefill = poolSize(deployment, "prefill"), decode = poolSize(deployment, "decode");
  const ours = deployment.drained_by.includes("order");
  const button = (text, action, cls) => node("button", { text, cls, type: "button", onclick: () => propose(action, deployment), "aria-label": `${text}: ${deployment.name}` });
  return node("article", { cls: `card deployment ${severity(deployment)}`, "data-name": deployment.name, "aria-label": deployment.name },
    node("header", {}, node("h3", { text: deployment.name }), node("span", { cls: "where", text: [deployment.site, deployment.region].filter(Boolean).join(" · ") })),
    chips(deployment),
    node("dl", {},
      fact("prefill", number(prefill), prefill === 0), fact("decode", number(decode), decode === 0),
      fact("weight", `${Number(deployment.weight.toFixed(3))}`), fact("priority", `${deployment.priority}`),
      fact("TTFT p50", seconds(deployment.ttft_s.p50)), fact("TTFT p99", seconds(deployment.ttft_s.p99)),
      fact("ITL p50", seconds(deployment.itl_s.p50)), fact("ITL p99", seconds(deployment.itl_s.p99)),
      fact("attempts", number(deployment.attempts)), fact("failed", number(deployment.attempts_failed), deployment.attempts_failed > 0),
      fact("waiting", number(deployment.here.waiting), deployment.here.waiting > 0), fact("running", number(deployment.here.requests))),
    held === null ? node("p", { cls: "note", text: "What all replicas hold is not known: the site's Valkey is away." })
      : bar("requests", held.requests, deployment.limit.requests, `${held.requests} / ${deployment.limit.requests}`),
    held === null ? null : bar("tokens", held.tokens, deployment.limit.tokens, `${short(held.tokens)} / ${short(deployment.limit.tokens)}`),
    node("ul", { cls: "frontends" }, ...deployment.frontends.map((frontend) => node("li", {},
      node("span", { cls: "url", text: frontend.url, title: frontend.url }),
      frontend.answers
        ? node("span", { text: `${frontend.prefill}P ${frontend.decode}D · ${number(frontend.in_flight)} running · ${number(frontend.queued)} queued` })
        : node("span", { cls: "bad-text", text: "▲ silent" })))),
    node("div", { cls: "buttons" },
      ours ? button("Undrain", "undrain") : button("Drain", "drain", "danger"),
      button("Weight", "weight"), button("Probe", "probe")));
}

function drawSites(sites) {
  $("sites").tBodies[0].replaceChildren(...sites.map((site) => node("tr", {},
    node("th", { text: site.name, scope: "row" }),
    node("td", { text: site.valkey === "none" ? "none: this replica alone" : `${site.valkey === "up" ? "●" : "▲"} ${site.valkey}${site.alone ? ", on own share" : ""}`, cls: site.valkey === "down" || site.alone ? "bad-text" : undefined }),
    cell(number(site.replicas)),
    node("td", { text: site.leases === null ? none : site.leases.map((lease) => `${lease.epoch.slice(0, 4)} ${lease.left_s.toFixed(1)}`).join("  ") || none }),
    cell(number(site.leases_lost), site.leases_lost > 0),
    node("td", { text: `${site.draining ? "■ draining, " : ""}revision ${site.revision}`, cls: site.draining ? "warn-text" : undefined }),
    node("td", {}, node("button", { text: site.draining ? "Undrain site" : "Drain site", cls: site.draining ? undefined : "danger", type: "button", "aria-label": `${site.draining ? "Undrain" : "Drain"} site ${site.name}`, onclick: () => propose(site.draining ? "undrain_site" : "drain_site", site) })))));
}

function alarms(view) {
  const said = [];
  const say = (text, bad) => said.push(node("p", { text: `▲ ${text}`, cls: bad ? "alarm bad" : "alarm" }));
  if (view.replica.files_refused) say("The fleet or keys file on disk is wrong; the former ones rule.", true);
  if (view.replica.draining) say("This replica is draining: it takes no new requests.", false);
  for (const model of view.models) {
    const named = view.deployments.filter((each) => model.deployments.includes(each.name));
    if (named.every((each) => each.draining || each.breaker.state !== "closed")) say(`${model.name}: no deployment takes its requests.`, true);
  }
  for (const each of view.deployments) {
    if (each.breaker.state !== "closed") say(`${each.name}: breaker ${each.breaker.state.replace("_", " ")}, opening ${each.breaker.opens} in a row.`, true);
    if (each.frontends.some((frontend) => !frontend.answers)) say(`${each.name}: a frontend is silent.`, true);
    else if (poolSize(each, "decode") === 0) say(`${each.name}: no decode worker.`, true);
    else if (poolSize(each, "prefill") === 0) say(`${each.name}: no prefill worker; decode workers compute prompts now.`, false);
  }
  for (const site of view.sites) if (site.valkey === "down") say(`${site.name}: Valkey is away; replicas admit on their own share.`, true);
  return said;
}

function draw(view) {
  const found = alarms(view);
  $("state").textContent = found.length ? `▲ ${found.length} to look at` : "● all well";
  $("state").className = found.length ? "bad-text" : "well";
  const texts = (nodes) => nodes.map((each) => each.textContent).join();
  // Only when it changes, or a screen reader would say it every second.
  if (texts(found) !== texts([...$("alarms").children])) $("alarms").replaceChildren(...found);
  $("window").textContent = view.window_s > 0 ? `last ${Math.round(view.window_s)} s` : "since the replica started";
  drawModels(view.models);
  keepingFocus($("deployments"), () => $("deployments").replaceChildren(...view.deployments.map(drawDeployment)));
  keepingFocus($("sites"), () => drawSites(view.sites));
  $("log").replaceChildren(...view.actions.map((each) => node("li", {},
    node("time", { text: new Date(each.at * 1000).toLocaleTimeString(), datetime: new Date(each.at * 1000).toISOString(), cls: "soft" }),
    node("b", { text: `${each.action} ${each.target}` }),
    node("span", { text: Object.entries(each.arguments).map(([name, value]) => `${name} ${value}`).join(", ") }),
    node("span", { text: `${each.result}: ${each.detail}`, cls: each.result === "done" ? "soft" : "bad-text" }),
    node("span", { text: `by ${each.key_name}`, cls: "soft" }))));
  if (!view.actions.length) $("log").replaceChildren(node("li", { text: "Nothing yet.", cls: "soft" }));
}

// A redrawn button must not throw a keyboard user back to the top of the page.
function keepingFocus(place, redraw) {
  const label = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  redraw();
  if (label) [...place.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === label)?.focus();
}

// ── asking ──

async function call(path, body) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(KEY)}` };
  const options = body ? { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) } : { headers };
  const response = await fetch(`/admin/v1/${path}`, options);
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error.message), { status: response.status, code: answer.error.code });
  return answer;
}

async function poll() {
  if (asking) return;
  asking = true;
  try {
    draw(await call("overview"));
    lastAnswer = Date.now();
    show(true);
  } catch (error) {
    if (error.status === 401 || error.status === 403) signOut(error.message);
    else if (!lastAnswer) $("login-error").textContent = "The gateway does not answer.";
  } finally {
    asking = false;
  }
}

function tick() {
  const age = Date.now() - lastAnswer;
  const stale = lastAnswer > 0 && age > STALE_MS;
  document.body.classList.toggle("stale", stale);
  $("age").textContent = lastAnswer ? `${(age / 1000).toFixed(0)} s ago` : "";
  if (stale) {
    $("state").textContent = "▲ this replica does not answer; what you see is old";
    $("state").className = "bad-text";
  }
  if (!document.hidden) poll();
}

function show(signedIn) {
  $("board").hidden = !signedIn;
  $("login").hidden = signedIn;
  $("leave").hidden = !signedIn;
}

function signIn() {
  clearInterval(timer);
  timer = setInterval(tick, POLL_MS);
  poll();
}

function signOut(why = "") {
  sessionStorage.removeItem(KEY);
  clearInterval(timer);
  lastAnswer = 0;
  show(false);
  $("state").textContent = $("age").textContent = "";
  $("login-error").textContent = why;
  $("key").value = "";
  $("key").focus();
}

// ── ordering ──

const field = (id, label, value, type = "number") => [node("label", { text: label, for: id }), node("input", { id, type, value, step: "any", min: 0 })];
const read = (id) => ($(id).value === "" ? null : Number($(id).value));

const ORDERS = {
  drain: { verb: "Drain", text: "New requests go elsewhere at every replica; what runs ends by itself.", of: "deployment" },
  undrain: { verb: "Undrain", text: "It takes new requests again.", of: "deployment" },
  probe: { verb: "Probe", text: "An open breaker is probed now. Another deployment gets one short prompt; nothing changes.", of: "deployment" },
  drain_site: { verb: "Drain site", text: "All its deployments get no new requests; what runs ends by itself.", of: "site" },
  undrain_site: { verb: "Undrain site", text: "Its deployments take new requests again.", of: "site" },
  weight: {
    verb: "Set weight", of: "deployment",
    text: "Its share of the sessions within its priority. Over a time, it rises in twenty steps. Empty: the fleet file's weight.",
    fields: (target) => [
      ...field("ask-weight", "weight", Number(target.weight.toFixed(3))),
      ...field("ask-start", "from (empty: as now)", ""),
      ...field("ask-ramp", "over seconds (0: at once)", 0),
      ...(target.overflow ? [node("label", {}, node("input", { id: "ask-join", type: "checkbox" }), " take sessions of its own, no longer overflow only")] : []),
    ],
    more: () => ({ weight: read("ask-weight"), start: read("ask-start"), ramp_seconds: read("ask-ramp") ?? 0, ...($("ask-join")?.checked ? { overflow: false } : {}) }),
  },
};

function propose(action, target) {
  const order = ORDERS[action];
  $("ask-title").textContent = `${order.verb}: ${target.name}`;
  $("ask-text").textContent = order.text;
  $("ask-error").textContent = "";
  $("ask-fields").replaceChildren(...(order.fields ? order.fields(target) : []));
  $("ask-yes").textContent = order.verb;
  let force = false;
  $("ask-form").onsubmit = async (event) => {
    event.preventDefault();
    $("ask-yes").disabled = true;
    try {
      await call("actions", { action, [order.of]: target.name, ...(order.more ? order.more() : {}), ...(force ? { force } : {}) });
      $("ask").close();
      poll();
    } catch (error) {
      $("ask-error").textContent = error.message;
      if (error.code === "last_deployment") {
        force = true;
        $("ask-yes").textContent = `${order.verb} all the same`;
      }
    } finally {
      $("ask-yes").disabled = false;
    }
  };
  $("ask").showModal();
  $(order.fields ? "ask-weight" : "ask-no").focus();
}

// ── beginning ──

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
}

theme(matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("leave").addEventListener("click", () => signOut());
$("ask-no").addEventListener("click", () => $("ask").close());
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  signIn();
});
if (sessionStorage.getItem(KEY)) signIn();
else $("key").focus();
