import java.util.Arrays;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Apache's client sending asynchronously from many threads with its own back-pressure switched on: a send waits while too
 * many are under way. Its benchmark program has no option for that. Prints a line a second as that program does.
 */
public final class AsyncProducer {
    private static final LongAdder SENT = new LongAdder();
    private static final LongAdder SEND_FAILED = new LongAdder();
    private static final LongAdder RESPONSE_FAILED = new LongAdder();

    private static final SendCallback COUNT = new SendCallback() {
        @Override
        public void onSuccess(SendResult result) {
            SENT.increment();
        }

        @Override
        public void onException(Throwable cause) {
            RESPONSE_FAILED.increment();
        }
    };

    /** Arguments: name server, topic, body bytes, threads. */
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setEnableBackpressureForAsyncMode(true);
        producer.start();
        byte[] body = new byte[Integer.parseInt(arguments[2])];
        Arrays.fill(body, (byte) 'x');
        for (int thread = 0; thread < Integer.parseInt(arguments[3]); thread++) {
            new Thread(() -> sendForEver(producer, arguments[1], body)).start();
        }
        long before = 0;
        while (true) {
            Thread.sleep(1000);
            long sent = SENT.sum();
            System.out.printf("Send TPS: %d | Send Failed: %d | Response Failed: %d%n",
                sent - before, SEND_FAILED.sum(), RESPONSE_FAILED.sum());
            before = sent;
        }
    }

    private static void sendForEver(DefaultMQProducer producer, String topic, byte[] body) {
        while (true) {
            try {
                producer.send(new Message(topic, body), COUNT);
            } catch (Exception cause) {
                SEND_FAILED.increment();
            }
        }
    }
}
