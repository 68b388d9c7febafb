// The inspector's web page in a real browser: a person clicks, and answers each sampling request by typing.

import { spawn } from "node:child_process";
import { chromium } from "playwright-core";
import { GOAL, job, nextAnswer, report, takeSteps, writeInDialect } from "./scripted_model.mjs";
import { inside, serversFile } from "./shell.mjs";

const QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
  + "--disable-component-update --disable-sync";
const ROUNDS = 3;
const READING_MS = 500;
const TITLES = { plan: "Plan" }; // of prompts the page lists these, of tools the names

/** The inspector's own server, and the address that it prints for a browser. */
async function inspector() {
  const launcher = inside("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js");
  const env = {
    ...process.env,
    HOME: job.folder,
    CLIENT_PORT: String(job.port),
    MCP_AUTO_OPEN_ENABLED: "false",
    MCP_SANDBOX_PORT: "0",
    MCP_INSPECTOR_SECRET_STORE: "memory",
  };
  const words = [launcher, "--web", "--config", serversFile()];
  const server = spawn(process.execPath, words, { env, stdio: ["ignore", "pipe", "pipe"], detached: true });
  const url = await new Promise((found, failed) => {
    let printed = "";
    const read = (chunk) => {
      printed += chunk;
      const address = printed.match(/http:\/\/\S+_TOKEN=\S+/);
      if (address) found(address[0]);
    };
    server.stdout.on("data", read);
    server.stderr.on("data", read);
    server.on("close", () => failed(new Error(printed)));
  });
  return { server, url };
}

/** A call by the form of the tool, as JSON; `answer` is done for each dialog until the result is shown. */
async function callTool(page, name, given, answer) {
  await page.getByText("Tools", { exact: true }).first().click();
  await page.getByText(name, { exact: true }).first().click();
  await page.getByRole("switch", { name: "Edit as JSON" }).click({ force: true });
  await page.locator(".ace_content").first().click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(JSON.stringify(given));
  await page.getByRole("button", { name: "Execute Tool" }).click();
  await answer();
  const shown = /^\{$[\s\S]*?^\}$/m; // the structured content, as the page prints it
  await page.getByText('"status": "completed"').first().waitFor();
  await takePicture(page, name);
  return JSON.parse((await page.locator("body").innerText()).match(shown)[0]);
}

/** Answer each round of the run by typing. */
async function playModel(page) {
  for (let round = 0; round < ROUNDS; round += 1) {
    const dialog = page.getByRole("dialog").filter({ hasText: `[round ${round + 1} of` });
    const asked = await dialog.innerText();
    const answer = nextAnswer(["read_file", asked], round); // the page shows no system prompt: it lists the tools
    await dialog.getByRole("textbox").first().fill(writeInDialect(answer));
    await dialog.getByRole("button", { name: "Send Response" }).click();
  }
  await page.getByRole("dialog").waitFor({ state: "hidden" });
}

/** Approve in a dialog, if one comes before the result. */
async function approveIfAsked(page) {
  const dialog = page.getByRole("dialog").filter({ hasText: "Permission for" });
  await dialog.or(page.getByText('"status": "completed"').first()).first().waitFor();
  if (!(await dialog.isVisible())) return;
  await page.waitForTimeout(READING_MS);
  await dialog.getByRole("combobox").or(dialog.getByRole("textbox", { name: /^Decision/ })).first().click();
  await page.getByRole("option", { name: "approve", exact: true }).click();
  await takePicture(page, "approval");
  await dialog.getByRole("button", { name: "Submit" }).click();
}

/** The page's form of a prompt, filled in up to `value` in `argument`. */
async function fillPrompt(page, name, given) {
  await page.getByText("Prompts", { exact: true }).first().click();
  await page.getByText(TITLES[name], { exact: true }).first().click();
  for (const [argument, value] of Object.entries(given)) {
    const field = page.getByRole("textbox", { name: new RegExp(`^${argument}`) });
    await field.or(page.getByRole("combobox", { name: new RegExp(`^${argument}`) })).first().click();
    await page.keyboard.insertText(value);
  }
}

/** The page anew, connected to the server. */
async function openPage(page) {
  await page.goto(url);
  await page.getByRole("switch").first().click({ force: true });
  await page.getByText("Tools", { exact: true }).first().waitFor();
}

/** What the job's steps are taken with, each on a page of its own. */
function waysOf(page) {
  const ways = {
    call: (name, given) => callTool(page, name, given, () => approveIfAsked(page)),
    task: async (name, given) => {
      const result = await callTool(page, name, given, async () => undefined);
      await page.getByText("Tasks", { exact: true }).first().click();
      await page.getByText("Completed (1)").waitFor(); // the page's own list of tasks
      await takePicture(page, "task");
      return result;
    },
    prompt: async (name, given) => {
      await fillPrompt(page, name, given);
      await page.getByRole("button", { name: "Get Prompt" }).click();
      await page.getByText("planner_plan").first().waitFor();
      await takePicture(page, "prompt");
      return page.locator("body").innerText();
    },
    complete: async (name, argument, value) => {
      await fillPrompt(page, name, { [argument]: value });
      await page.getByRole("option").first().waitFor();
      await takePicture(page, "completion");
      return page.getByRole("option").allInnerTexts();
    },
    read: async (uri) => {
      await page.getByText("Resources", { exact: true }).first().click();
      await page.getByText("Runs", { exact: true }).first().click();
      await page.getByText(uri, { exact: true }).first().waitFor();
      await page.getByText('"run_id"').first().waitFor();
      await takePicture(page, "resource");
      return page.locator("body").innerText();
    },
  };
  const anew = (way) => async (...given) => {
    await openPage(page);
    return way(...given);
  };
  return Object.fromEntries(Object.entries(ways).map(([name, way]) => [name, anew(way)]));
}

/** A picture of the page as it is, for whoever looks at the test. */
async function takePicture(page, name) {
  await page.screenshot({ path: `${job.folder}/page-${name}.png` });
}

async function throughThePage(page) {
  if (job.way === "steps") return { steps: await takeSteps(waysOf(page)) };
  await openPage(page);
  return callTool(page, "planner_run", { goal: GOAL }, () => playModel(page));
}

const { server, url } = await inspector();
const browser = await chromium.launch({ executablePath: job.browser, args: QUIET.split(" ") });
const page = await browser.newPage({ viewport: { width: 1400, height: 1000 } });
page.setDefaultTimeout(20_000);
try {
  report(await throughThePage(page));
} catch (error) {
  await takePicture(page, "failure");
  throw error;
} finally {
  await browser.close();
  process.kill(-server.pid);
}
