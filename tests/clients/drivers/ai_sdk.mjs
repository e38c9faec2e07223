// The AI SDK with the provider that the command line names: one question as a JSON line in, what it gave as one out.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { createInterface } from "node:readline";
import { z } from "zod";

const STATUS = { r1: "r1 is up for 4 days", r2: "r2 is down" };
const TURNS = 4; // a client that loops ends here

const PROVIDERS = {
  "openai-compatible": (at) => createOpenAICompatible({ ...at, name: "proxy", includeUsage: true }),
  openai: (at) => createOpenAI(at), // speaks the Responses API
  anthropic: (at) => createAnthropic(at),
};

const inputSchema = z.object({ device: z.enum(["r1", "r2"]) });

function request(asked, ran) {
  const provider = PROVIDERS[process.argv[2]]({ baseURL: asked.base_url, apiKey: asked.api_key });
  const readStatus = ({ device }) => (ran.push("read_status"), STATUS[device]);
  const deleteDevice = ({ device }) => (ran.push("delete_device"), `${device} is deleted`);
  const choice =
    asked.tool_choice === "required" ? "required" : { type: "tool", toolName: asked.tool_choice };
  return {
    model: provider(asked.model),
    prompt: asked.prompt,
    temperature: 0,
    maxOutputTokens: 64,
    stopWhen: stepCountIs(TURNS),
    prepareStep: ({ stepNumber }) => (asked.tool_choice && stepNumber === 0 ? { toolChoice: choice } : {}),
    tools: {
      read_status: tool({ description: "Reads a device's status.", inputSchema, strict: true, execute: readStatus }),
      delete_device: tool({ description: "Deletes a device.", inputSchema, strict: true, execute: deleteDevice }),
    },
  };
}

async function streamed(fields) {
  let text = "";
  for await (const part of streamText({ ...fields, onError: () => {} }).fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "start-step") text = ""; // only the last step's text is the answer
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

async function play(asked) {
  const ran = [];
  try {
    const fields = request(asked, ran);
    const text = asked.stream ? await streamed(fields) : (await generateText(fields)).text;
    return { text, ran, raised: null };
  } catch (error) {
    return { text: null, ran, raised: { type: error.name, text: error.message } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await play(JSON.parse(line))));
}
