// The inspector's web page in a real browser: a person's hands click, and answer each sampling request by typing.

import { spawn } from "node:child_process";
import { chromium } from "playwright-core";
import { GOAL, job, tell, turn, written } from "./mind.mjs";
import { inside, serversFile } from "./shell.mjs";

const QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
  + "--disable-component-update --disable-sync";
const ROUNDS = 3;

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
    let said = "";
    const hear = (chunk) => {
      said += chunk;
      const address = said.match(/http:\/\/\S+_TOKEN=\S+/);
      if (address) found(address[0]);
    };
    server.stdout.on("data", hear);
    server.stderr.on("data", hear);
    server.on("close", () => failed(new Error(said)));
  });
  return { server, url };
}

async function throughThePage(page) {
  await page.getByRole("switch").first().click({ force: true });
  await page.getByText("Tools", { exact: true }).first().click();
  await page.getByText("planner_run").first().click();
  await page.getByRole("textbox", { name: /^goal/ }).fill(GOAL);
  await page.getByRole("button", { name: "Execute Tool" }).click();
  for (let round = 0; round < ROUNDS; round += 1) {
    const dialog = page.getByRole("dialog").filter({ hasText: `[round ${round + 1} of` });
    const asked = await dialog.innerText();
    const said = turn(["read_file", asked], round); // the page shows no system prompt, where the tools are told
    await dialog.getByRole("textbox").first().fill(written(said));
    await dialog.getByRole("button", { name: "Send Response" }).click();
  }
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  const shown = /^\{$[\s\S]*?^\}$/m; // the structured content, as the page prints it
  await page.waitForFunction((pattern) => new RegExp(pattern, "m").test(document.body.innerText), shown.source);
  return JSON.parse((await page.locator("body").innerText()).match(shown)[0]);
}

const { server, url } = await inspector();
const browser = await chromium.launch({ executablePath: job.browser, args: QUIET.split(" ") });
const page = await browser.newPage({ viewport: { width: 1400, height: 1000 } });
page.setDefaultTimeout(20_000);
try {
  await page.goto(url);
  tell(await throughThePage(page));
} catch (error) {
  await page.screenshot({ path: `${job.folder}/page.png` });
  throw error;
} finally {
  await browser.close();
  process.kill(-server.pid);
}
