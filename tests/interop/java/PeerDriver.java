import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Method;
import java.net.URLDecoder;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Does with a Java client what standard input says, one command a line, and reports JSON lines; judges nothing.
 * The one source compiles against 4.9 and 5.x: where a class moved between them it is reached by reflection.
 */
public final class PeerDriver {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final AtomicInteger FAILED = new AtomicInteger();
    private static final Object ADMIN = new Object();

    private static String namesrv;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static DefaultMQAdminExt topicMaker;
    private static final Map<Integer, Runnable> RUNNING = new ConcurrentHashMap<>();

    private PeerDriver() {
    }

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        System.setOut(System.err);
        ExecutorService commands = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Command command = new Command(line);
            commands.execute(() -> perform(command));
        }
        RUNNING.values().forEach(Runnable::run);
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        OUT.flush();
        Runtime.getRuntime().halt(FAILED.get() == 0 ? 0 : 1);
    }

    private static void perform(Command command) {
        try {
            switch (command.name) {
                case "send": send(command); break;
                case "load": load(command); break;
                case "consume": consume(command); break;
                case "stop": stop(command.number("consumer", 0)); break;
                case "read_all": readAll(command); break;
                case "create_topic": createTopic(command); break;
                case "admin": admin(command); break;
                default: throw new IllegalArgumentException("unknown command " + command.name);
            }
            command.report("done", "ok", true);
        } catch (Throwable error) {
            FAILED.incrementAndGet();
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            command.report("done", "ok", false, "error", trace.toString());
        }
    }

    /** What signs the requests of producers and push consumers, if the system properties name a user. */
    private static RPCHook signing() {
        String user = System.getProperty("interop.user");
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, System.getProperty("interop.password")));
    }

    // ---- producing

    private static DefaultMQProducer producer(Command command) throws Exception {
        String group = command.text("group", "interop_producer");
        String compression = command.text("compression", "");
        synchronized (PRODUCERS) {
            DefaultMQProducer known = PRODUCERS.get(group + compression);
            if (known != null) {
                return known;
            }
            DefaultMQProducer made = new DefaultMQProducer(group + compression, signing());
            made.setNamesrvAddr(namesrv);
            made.setInstanceName(group + compression);
            made.setSendMsgTimeout(10_000);
            // A producer asks for routes every 30 s unless told otherwise; tests do not wait that long for a new master.
            made.setPollNameServerInterval(1_000);
            if (!compression.isEmpty()) {
                made.setCompressMsgBodyOverHowmuch(1024);
                if (!compression.equals("DEFAULT")) {
                    set(made, "setCompressType", compression);
                }
            }
            made.start();
            PRODUCERS.put(group + compression, made);
            return made;
        }
    }

    private static void send(Command command) throws Exception {
        DefaultMQProducer producer = producer(command);
        int count = command.number("count", 1);
        switch (command.text("mode", "sync")) {
            case "sync":
                for (int i = 0; i < count; i++) {
                    sent(command, i, 0, producer.send(message(command, i, 0)));
                }
                break;
            case "async":
                sendAsync(command, producer, count);
                break;
            case "oneway":
                for (int i = 0; i < count; i++) {
                    producer.sendOneway(message(command, i, 0));
                    command.report("sent", sentFields(i, "ONEWAY", "", "", -1, -1, body(command, i, 0)));
                }
                break;
            case "batch":
                List<Message> batch = new ArrayList<>();
                for (int i = 0; i < count; i++) {
                    batch.add(message(command, i, 0));
                }
                sent(command, 0, 0, producer.send(batch));
                break;
            case "ordered":
                int shards = command.number("shards", 1);
                for (int i = 0; i < count; i++) {
                    int shard = i % shards;
                    sent(command, i, shard, producer.send(message(command, i, shard),
                        (queues, ignored, key) -> queues.get((Integer) key % queues.size()), shard));
                }
                break;
            default:
                throw new IllegalArgumentException("unknown mode");
        }
    }

    private static void sendAsync(Command command, DefaultMQProducer producer, int count) throws Exception {
        CountDownLatch answered = new CountDownLatch(count);
        List<Throwable> errors = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int index = i;
            producer.send(message(command, i, 0), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent(command, index, 0, result);
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    synchronized (errors) {
                        errors.add(error);
                    }
                    answered.countDown();
                }
            });
        }
        if (!answered.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answered.getCount() + " callbacks did not come");
        }
        if (!errors.isEmpty()) {
            throw new IllegalStateException(errors.size() + " sends failed", errors.get(0));
        }
    }

    /**
     * Sends from several threads until it is stopped, whatever happens to the broker; reports what was acknowledged.
     * With shards, which must be as many as threads, each thread sends to a queue of its own, one message after the other.
     */
    private static void load(Command command) throws Exception {
        DefaultMQProducer producer = producer(command);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(3_000);
        AtomicInteger over = new AtomicInteger();
        AtomicInteger refused = new AtomicInteger();
        RUNNING.put(command.call, over::incrementAndGet);
        int count = command.number("threads", 4);
        boolean ordered = command.number("shards", 0) > 0;
        int pause = command.number("pause", 0);
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < count; t++) {
            int shard = t;
            Thread thread = new Thread(() -> {
                for (int i = shard; over.get() == 0; i += count) {
                    try {
                        Message message = message(command, i, shard);
                        sent(command, i, shard, !ordered ? producer.send(message) : producer.send(message,
                            (queues, ignored, key) -> queues.get((Integer) key % queues.size()), shard));
                        Thread.sleep(pause);
                    } catch (Exception notAcknowledged) {
                        refused.incrementAndGet();
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        command.report("refused", "count", refused.get());
    }

    private static Message message(Command command, int index, int shard) {
        Message message = new Message(command.text("topic", ""), body(command, index, shard));
        String[] tags = command.text("tags", "").split(",");
        if (!tags[index % tags.length].isEmpty()) {
            message.setTags(tags[index % tags.length]);
        }
        if (!command.text("keys", "").isEmpty()) {
            message.setKeys(fill(command.text("keys", ""), index, shard));
        }
        for (Map.Entry<String, String> property : pairs(command.text("properties", "")).entrySet()) {
            message.putUserProperty(property.getKey(), fill(property.getValue(), index, shard));
        }
        if (command.number("delay", 0) > 0) {
            message.setDelayTimeLevel(command.number("delay", 0));
        }
        return message;
    }

    private static byte[] body(Command command, int index, int shard) {
        byte[] text = fill(command.text("body", "message-{i}"), index, shard).getBytes(StandardCharsets.UTF_8);
        int size = command.number("size", 0);
        if (size == 0) {
            return text;
        }
        byte[] long_ = new byte[size];
        for (int at = 0; at < size; at++) {
            long_[at] = text[at % text.length];
        }
        return long_;
    }

    private static String fill(String template, int index, int shard) {
        return template.replace("{i}", Integer.toString(index)).replace("{s}", Integer.toString(shard));
    }

    private static void sent(Command command, int index, int shard, SendResult result) {
        MessageQueue queue = result.getMessageQueue();
        command.report("sent", sentFields(index, result.getSendStatus().name(), result.getMsgId(),
            result.getOffsetMsgId(), queue.getQueueId(), result.getQueueOffset(), body(command, index, shard)));
    }

    private static Object[] sentFields(int index, String status, String id, String offsetId, int queue, long offset,
        byte[] body) {
        return new Object[] {"index", index, "status", status, "msg_id", id, "offset_msg_id", offsetId, "queue_id", queue,
            "queue_offset", offset, "body", shown(body)};
    }

    // ---- consuming

    private static void consume(Command command) throws Exception {
        String kind = command.text("kind", "push");
        if (kind.equals("lite")) {
            startLite(command);
            return;
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            command.text("group", ""), signing(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(command.text("instance", "consumer-" + command.call));
        consumer.setPollNameServerInterval(1_000);
        // A 5.x consumer may skip the heartbeat that its first rebalance calls for; the next one must not be 30 s away.
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.text("topic", ""), command.text("expression", "*"));
        consumer.setMaxReconsumeTimes(command.number("max_reconsume", -1));
        consumer.setSuspendCurrentQueueTimeMillis(200);
        // Listeners that have reported a message return before the offsets are committed for the last time.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        set(consumer, "setMessageModel", command.text("model", "CLUSTERING"));
        String name = command.text("name", kind);
        int failures = command.number("failures", 0);
        if (kind.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                report(command, name, messages);
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                report(command, name, messages);
                context.setDelayLevelWhenNextConsume(command.number("delay_level", 0));
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        RUNNING.put(command.call, consumer::shutdown);
    }

    private static void startLite(Command command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.text("group", ""));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("lite-" + command.call);
        consumer.setPollNameServerInterval(1_000);
        // A 5.x consumer may skip the heartbeat that its first rebalance calls for; the next one must not be 30 s away.
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPollTimeoutMillis(500);
        boolean assigned = command.text("assign", "no").equals("yes");
        if (!assigned) {
            consumer.subscribe(command.text("topic", ""), command.text("expression", "*"));
        }
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>();
        if (assigned) {
            queues.addAll(consumer.fetchMessageQueues(command.text("topic", "")));
            consumer.assign(queues);
        }
        int seekAfter = command.number("seek_after", Integer.MAX_VALUE);
        AtomicInteger over = new AtomicInteger();
        Thread poller = new Thread(() -> {
            int polled = 0;
            boolean sought = false;
            while (over.get() == 0) {
                List<MessageExt> messages = consumer.poll();
                report(command, "lite", messages);
                polled += messages.size();
                if (!messages.isEmpty()) {
                    commit(consumer);
                } else if (polled >= seekAfter && !sought) {
                    sought = true;
                    seek(consumer, queues, command.number("seek", 0));
                }
            }
            commit(consumer);
            consumer.shutdown();
        });
        poller.start();
        RUNNING.put(command.call, () -> {
            over.incrementAndGet();
            try {
                poller.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
    }

    /** The client gives messages twice when a seek meets an answer that arrives; so seek while every pull is held. */
    private static void seek(DefaultLitePullConsumer consumer, List<MessageQueue> queues, long offset) {
        try {
            for (MessageQueue queue : queues) {
                consumer.seek(queue, offset);
            }
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }

    /** commitSync was deprecated in favour of commit, which only 5.x has. */
    @SuppressWarnings("deprecation")
    private static void commit(DefaultLitePullConsumer consumer) {
        consumer.commitSync();
    }

    private static void stop(int consumer) {
        Runnable running = RUNNING.remove(consumer);
        if (running != null) {
            running.run();
        }
    }

    private static void report(Command command, String consumer, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            command.report("received", receivedFields(consumer, message));
        }
    }

    private static Object[] receivedFields(String consumer, MessageExt message) {
        return new Object[] {"consumer", consumer, "topic", message.getTopic(), "queue_id", message.getQueueId(),
            "queue_offset", message.getQueueOffset(), "body", shown(message.getBody()),
            "tags", text(message.getTags()), "keys", text(message.getKeys()),
            "properties", new TreeMap<>(message.getProperties()), "reconsume_times", message.getReconsumeTimes(),
            "msg_id", message.getMsgId(), "offset_msg_id", offsetMsgId(message),
            "physical_offset", message.getCommitLogOffset(), "born_timestamp", message.getBornTimestamp(),
            "store_timestamp", message.getStoreTimestamp(), "store_size", message.getStoreSize()};
    }

    /** MessageClientExt keeps the broker's id beside the client's. */
    private static String offsetMsgId(MessageExt message) {
        try {
            return (String) message.getClass().getMethod("getOffsetMsgId").invoke(message);
        } catch (ReflectiveOperationException notThere) {
            return "";
        }
    }

    /** Reads every queue of a topic from its least to its greatest offset with the explicit pull consumer. */
    @SuppressWarnings("deprecation")
    private static void readAll(Command command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_reader");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("reader-" + command.call);
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(command.text("topic", ""))) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                command.report("range", "queue_id", queue.getQueueId(), "min", offset, "max", end);
                while (offset < end) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getMsgFoundList() != null) {
                        report(command, "read_all", result.getMsgFoundList());
                    }
                    if (result.getNextBeginOffset() <= offset) {
                        throw new IllegalStateException(queue + " stands still at " + offset + ": " + result);
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    // ---- administration

    /** One admin client for all topics, for each one's shutdown may take three seconds. */
    private static DefaultMQAdminExt topicMaker() throws Exception {
        synchronized (ADMIN) {
            if (topicMaker == null) {
                topicMaker = new DefaultMQAdminExt();
                topicMaker.setNamesrvAddr(namesrv);
                topicMaker.setInstanceName("topic-maker");
                topicMaker.start();
            }
            return topicMaker;
        }
    }

    private static void createTopic(Command command) throws Exception {
        TopicConfig topic = new TopicConfig(command.text("topic", ""));
        topic.setReadQueueNums(command.number("queues", 4));
        topic.setWriteQueueNums(command.number("queues", 4));
        topicMaker().createAndUpdateTopicConfig(command.text("broker", ""), topic);
        awaitRoute(topicMaker(), topic.getTopicName());
    }

    /** A broker may be up before the name server knows its topics. */
    private static void awaitRoute(DefaultMQAdminExt admin, String topic) throws Exception {
        for (long deadline = System.nanoTime() + 30_000_000_000L;; Thread.sleep(10)) {
            try {
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (MQClientException notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
            }
        }
    }

    /** Runs an mqadmin command inside this process and reports what it printed. */
    private static void admin(Command command) throws Exception {
        String[] words = command.text("words", "").split("\u0001");
        synchronized (ADMIN) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream before = System.out;
            System.setOut(new PrintStream((OutputStream) printed, true, StandardCharsets.UTF_8));
            System.setProperty("rocketmq.namesrv.addr", namesrv);
            try {
                MQAdminStartup.main0(words, null);
            } finally {
                System.setOut(before);
            }
            command.report("printed", "text", printed.toString(StandardCharsets.UTF_8));
        }
    }

    // ---- the protocol

    private static String text(String value) {
        return value == null ? "" : value;
    }

    private static Map<String, String> pairs(String encoded) {
        Map<String, String> pairs = new LinkedHashMap<>();
        for (String pair : encoded.split("&")) {
            int equals = pair.indexOf('=');
            if (equals > 0) {
                pairs.put(decode(pair.substring(0, equals)), decode(pair.substring(equals + 1)));
            }
        }
        return pairs;
    }

    private static String decode(String value) {
        return URLDecoder.decode(value, StandardCharsets.UTF_8);
    }

    /** The body itself where it is short text, else its digest. */
    private static String shown(byte[] body) {
        if (body.length <= 512) {
            try {
                return StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
                    .decode(ByteBuffer.wrap(body)).toString();
            } catch (CharacterCodingException notText) {
                // shown by its digest
            }
        }
        try {
            StringBuilder digest = new StringBuilder("sha256:");
            for (byte each : MessageDigest.getInstance("SHA-256").digest(body)) {
                digest.append(String.format("%02x", each));
            }
            return digest.toString();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Calls a setter whose one parameter is an enum that lives in different packages in 4.9 and 5.x. */
    private static void set(Object target, String setter, String value) throws Exception {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterTypes()[0].isEnum()) {
                for (Object constant : method.getParameterTypes()[0].getEnumConstants()) {
                    if (((Enum<?>) constant).name().equals(value)) {
                        method.invoke(target, constant);
                        return;
                    }
                }
            }
        }
        throw new IllegalArgumentException(setter + " does not take " + value);
    }

    private static final class Command {
        final int call;
        final String name;
        private final Map<String, String> arguments = new LinkedHashMap<>();

        Command(String line) {
            String[] words = line.split(" ");
            call = Integer.parseInt(words[0]);
            name = words[1];
            for (int i = 2; i < words.length; i++) {
                int equals = words[i].indexOf('=');
                arguments.put(words[i].substring(0, equals), decode(words[i].substring(equals + 1)));
            }
        }

        String text(String key, String otherwise) {
            return arguments.getOrDefault(key, otherwise);
        }

        int number(String key, int otherwise) {
            String value = arguments.get(key);
            return value == null ? otherwise : Integer.parseInt(value);
        }

        void report(String event, Object... fields) {
            StringBuilder line = new StringBuilder("{\"call\":").append(call).append(",\"event\":\"").append(event).append('"');
            for (int i = 0; i < fields.length; i += 2) {
                line.append(",\"").append(fields[i]).append("\":");
                json(line, fields[i + 1]);
            }
            synchronized (OUT) {
                OUT.println(line.append('}'));
                OUT.flush();
            }
        }

        private static void json(StringBuilder out, Object value) {
            if (value instanceof Map) {
                String separator = "{";
                for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                    out.append(separator);
                    json(out, entry.getKey());
                    out.append(':');
                    json(out, entry.getValue());
                    separator = ",";
                }
                out.append(separator.equals("{") ? "{}" : "}");
            } else if (value instanceof Number || value instanceof Boolean) {
                out.append(value);
            } else if (value == null) {
                out.append("null");
            } else {
                quoted(out, value.toString());
            }
        }

        private static void quoted(StringBuilder out, String text) {
            out.append('"');
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < 0x20 || c > 0x7e) {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            out.append('"');
        }
    }
}
