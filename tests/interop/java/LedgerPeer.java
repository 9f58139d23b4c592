import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * A DLedger node without a broker, which does what standard input says, one command a line, and answers each with one line.
 * Arguments: group, own id, peers, base directory, bytes of a data file, whether to push in batches.
 */
public final class LedgerPeer {
    private static final int IN_FLIGHT_MAX = 500;

    private LedgerPeer() {
    }

    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig().group(args[0]).selfId(args[1]).peers(args[2]).storeBaseDir(args[3]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(args[4]));
        config.setMappedFileSizeForEntryIndex(32 * 1024);
        config.setEnableBatchPush(Boolean.parseBoolean(args[5]));
        config.setHeartBeatTimeIntervalMs(500);
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" ");
            switch (words[0]) {
                case "append":
                    System.out.println(append(config, server, Integer.parseInt(words[1]), Integer.parseInt(words[2])));
                    break;
                case "status":
                    System.out.println(status(server));
                    break;
                case "stop":
                    server.shutdown();
                    System.out.println("stopped");
                    System.exit(0);
                    break;
                default:
                    System.out.println("unknown");
            }
        }
        System.exit(0);
    }

    /** Append entries whose bodies all hold the byte of their number; says how many were acknowledged, and the first refusal. */
    private static String append(DLedgerConfig config, DLedgerServer server, int count, int size) throws Exception {
        ArrayDeque<CompletableFuture<AppendEntryResponse>> inFlight = new ArrayDeque<>();
        int acknowledged = 0;
        int refusal = 200;
        for (int number = 0; number < count || !inFlight.isEmpty();) {
            if (number < count && inFlight.size() < IN_FLIGHT_MAX) {
                AppendEntryRequest request = new AppendEntryRequest();
                request.setGroup(config.getGroup());
                request.setRemoteId(config.getSelfId());
                byte[] body = new byte[size];
                Arrays.fill(body, (byte) number++);
                request.setBody(body);
                inFlight.add(server.handleAppend(request));
                continue;
            }
            int code = inFlight.poll().get(10, TimeUnit.SECONDS).getCode();
            acknowledged += code == 200 ? 1 : 0;
            refusal = code == 200 ? refusal : code;
        }
        return acknowledged + " " + refusal;
    }

    /** Role, term, leader, begin index, end index, committed index, end position. */
    private static String status(DLedgerServer server) {
        DLedgerMmapFileStore store = (DLedgerMmapFileStore) server.getDLedgerStore();
        return String.join(" ", String.valueOf(server.getMemberState().getRole()),
            String.valueOf(server.getMemberState().currTerm()), String.valueOf(server.getMemberState().getLeaderId()),
            String.valueOf(store.getLedgerBeginIndex()), String.valueOf(store.getLedgerEndIndex()),
            String.valueOf(store.getCommittedIndex()), String.valueOf(store.getWritePos()));
    }
}
