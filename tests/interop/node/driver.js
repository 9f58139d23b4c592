// Does with ali-ons what standard input says, one command a line, and reports JSON lines; judges nothing.
'use strict';

const crypto = require('crypto');
const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const nameSrv = process.argv[2];
const quiet = { debug() {}, info() {}, warn: console.error, error: console.error };
// All producers and consumers of the process share one inner client, whose pace the first of them sets.
const pace = { rebalanceInterval: 1000, pollNameServerInteval: 1000, heartbeatBrokerInterval: 1000 };
// The client wants something to ask an address server with; a fixed name server needs none.
const httpclient = { request() { throw new Error('no address server here'); } };
const producers = new Map();
const consumers = new Map();
let failed = false;

function report(call, event, fields) {
  process.stdout.write(JSON.stringify({ call, event, ...fields }) + '\n');
}

function parse(line) {
  const [call, name, ...words] = line.split(' ');
  const given = {};
  for (const word of words) {
    const equals = word.indexOf('=');
    given[word.slice(0, equals)] = decodeURIComponent(word.slice(equals + 1));
  }
  return { call: Number(call), name, text: (key, otherwise) => given[key] ?? otherwise,
    number: (key, otherwise) => (key in given ? Number(given[key]) : otherwise) };
}

function fill(template, index) {
  return template.replaceAll('{i}', String(index));
}

function shown(body) {
  const text = body.toString('utf8');
  if (body.length <= 512 && Buffer.from(text, 'utf8').equals(body)) {
    return text;
  }
  return 'sha256:' + crypto.createHash('sha256').update(body).digest('hex');
}

function body(command, index) {
  const text = Buffer.from(fill(command.text('body', 'message-{i}'), index), 'utf8');
  const size = command.number('size', 0);
  return size ? Buffer.alloc(size, text) : text;
}

function message(command, index) {
  const tags = command.text('tags', '').split(',');
  const made = new Message(command.text('topic'), tags[index % tags.length], body(command, index));
  const keys = command.text('keys', '');
  if (keys) {
    made.keys = [ fill(keys, index) ];
  }
  for (const [ key, value ] of new URLSearchParams(command.text('properties', ''))) {
    made.properties[key] = fill(value, index);
  }
  if (command.number('delay', 0)) {
    made.delayTimeLevel = command.number('delay', 0);
  }
  return made;
}

async function producer(group) {
  if (!producers.has(group)) {
    const made = new Producer({ nameSrv, httpclient, producerGroup: group, logger: quiet, ...pace });
    made.on('error', error => console.error(error));
    producers.set(group, made);
  }
  const made = producers.get(group);
  await made.ready();
  return made;
}

async function send(command) {
  const sender = await producer(command.text('group', 'node_producer'));
  for (let i = 0; i < command.number('count', 1); i++) {
    const sending = message(command, i);
    const shownBody = shown(sending.body);
    const result = await sender.send(sending);
    report(command.call, 'sent', { index: i, status: result.sendStatus, msg_id: result.msgId, offset_msg_id: result.msgId,
      queue_id: Number(result.messageQueue.queueId), queue_offset: Number(result.queueOffset), body: shownBody });
  }
}

async function consume(command) {
  const made = new Consumer({ nameSrv, httpclient, consumerGroup: command.text('group'), logger: quiet,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...pace,
    isBroadcast: command.text('model', 'CLUSTERING') === 'BROADCASTING' });
  made.on('error', error => console.error(error));
  const failures = command.number('failures', 0);
  made.subscribe(command.text('topic'), command.text('expression', '*'), async got => {
    report(command.call, 'received', { consumer: command.text('name', 'push'), topic: got.topic, queue_id: got.queueId,
      queue_offset: Number(got.queueOffset), body: shown(got.body), tags: got.tags ?? '', keys: got.keys ?? '',
      properties: got.properties, reconsume_times: got.reconsumeTimes, msg_id: got.msgId, offset_msg_id: got.msgId,
      physical_offset: Number(got.commitLogOffset), born_timestamp: Number(got.bornTimestamp),
      store_timestamp: Number(got.storeTimestamp), store_size: got.storeSize });
    return got.reconsumeTimes < failures ? Consumer.ACTION_RETRY : undefined;
  });
  await made.ready();
  consumers.set(command.call, made);
}

async function stop(call) {
  const made = consumers.get(call);
  consumers.delete(call);
  if (made) {
    await made.close();
  }
}

const commands = { send, consume, stop: command => stop(command.number('consumer', 0)) };

async function perform(command) {
  try {
    await commands[command.name](command);
    report(command.call, 'done', { ok: true });
  } catch (error) {
    failed = true;
    report(command.call, 'done', { ok: false, error: String(error.stack) });
  }
}

const input = readline.createInterface({ input: process.stdin });
input.on('line', line => { perform(parse(line)); });
input.on('close', () => process.exit(failed ? 1 : 0));
