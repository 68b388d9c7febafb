// The inspector's web page in a real browser: a person clicks, and answers each sampling request by typing.

import { spawn } from "node:child_process";
import { chromium } from "playwright-core";
import { GOAL, job, nextAnswer, report, writeInDialect } from "./scripted_model.mjs";
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

async function throughThePage(page) {
  await page.getByRole("switch").first().click({ force: true });
  await page.getByText("Tools", { exact: true }).first().click();
  await page.getByText("planner_run").first().click();
  await page.getByRole("textbox", { name: /^goal/ }).fill(GOAL);
  await page.getByRole("button", { name: "Execute Tool" }).click();
  for (let round = 0; round < ROUNDS; round += 1) {
    const dialog = page.getByRole("dialog").filter({ hasText: `[round ${round + 1} of` });
    const asked = await dialog.innerText();
    const answer = nextAnswer(["read_file", asked], round); // the page shows no system prompt: it lists the tools
    await dialog.getByRole("textbox").first().fill(writeInDialect(answer));
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
  report(await throughThePage(page));
} catch (error) {
  await page.screenshot({ path: `${job.folder}/page.png` });
  throw error;
} finally {
  await browser.close();
  process.kill(-server.pid);
}
