// What pi's library of models does, run by node: `node pi_script.mjs FOLDER BASE_URL MODEL`.
//
// FOLDER has the package @mariozechner/pi-ai. Prints one JSON object. Knows nothing of this project.

import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, baseUrl, name] = process.argv.slice(2);
const entry = join(resolve(folder), "node_modules/@mariozechner/pi-ai/dist/index.js");
const { complete, isContextOverflow } = await import(pathToFileURL(entry));

const model = {
    id: name, name, baseUrl, provider: "own", reasoning: false, input: ["text"],
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }, contextWindow: 512, maxTokens: 32000,
};
const ask = (api, text) =>
    complete(
        { ...model, api },
        { messages: [{ role: "user", content: text, timestamp: 0 }] },
        { apiKey: "unused", maxTokens: model.maxTokens, temperature: 0 },
    );
const question = "What is the capital of France?";
const told = {};
for (const api of ["openai-completions", "openai-responses", "anthropic-messages"]) {
    model.baseUrl = api === "anthropic-messages" ? baseUrl.replace(/\/v1$/, "") : baseUrl;
    const answer = await ask(api, question);
    const long = await ask(api, `${question} `.repeat(100));
    told[api] = {
        text: answer.content.map((block) => block.text ?? "").join(""),
        stop: answer.stopReason,
        error: long.errorMessage,
        overflow: isContextOverflow(long, model.contextWindow),
    };
}
console.log(JSON.stringify(told));
