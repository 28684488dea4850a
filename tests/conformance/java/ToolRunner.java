import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in one virtual machine, whose start costs more than most
 * tools do. Standard input has the calls: the number of texts, then each as its length and its UTF-8 bytes; they are a
 * class, what the tool reads, and its arguments. Standard output has the answers: exit status, how many threads the
 * tool has left behind, what it printed and what it complained, each as length and bytes. It ends with its input.
 */
public class ToolRunner {
    static final long PATIENCE_MS = 2_000;

    static final Switch out = new Switch();
    static final Switch err = new Switch();
    static final List<Runnable> hooks = new CopyOnWriteArrayList<>();
    static volatile Integer status;

    /** Ends the main method of a tool that wants to exit. */
    static class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** A stream whose target changes: tools and loggers keep the one that they have found first. */
    static class Switch extends OutputStream {
        volatile OutputStream target = OutputStream.nullOutputStream();

        @Override
        public void write(int one) throws IOException {
            target.write(one);
        }

        @Override
        public void write(byte[] bytes, int at, int length) throws IOException {
            target.write(bytes, at, length);
        }
    }

    /** Ends a tool that calls System.exit, as libraries for arguments do. */
    @SuppressWarnings("removal")
    static class Guard extends SecurityManager {
        @Override
        public void checkExit(int code) {
            end(code, null);
        }

        @Override
        public void checkPermission(Permission permission) {}

        @Override
        public void checkPermission(Permission permission, Object context) {}

        @Override
        public ThreadGroup getThreadGroup() {
            return Thread.currentThread().getThreadGroup();
        }
    }

    @SuppressWarnings("removal")
    public static void main(String[] none) throws Exception {
        DataInputStream calls = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream answers =
                new DataOutputStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(ToolRunner::end);
        Exit.setHaltProcedure(ToolRunner::end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        System.setSecurityManager(new Guard());
        while (true) {
            List<String> texts = new ArrayList<>();
            try {
                for (int left = calls.readInt(); left > 0; left--) {
                    texts.add(new String(calls.readNBytes(calls.readInt()), StandardCharsets.UTF_8));
                }
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
            }
            answer(answers, texts);
        }
    }

    static void answer(DataOutputStream answers, List<String> texts) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        out.target = printed;
        err.target = complained;
        System.setIn(new ByteArrayInputStream(texts.get(1).getBytes(StandardCharsets.UTF_8)));
        String[] arguments = texts.subList(2, texts.size()).toArray(new String[0]);
        status = null;
        hooks.clear();
        ThreadGroup group = new ThreadGroup("tool");
        // Its name is in what an uncaught exception prints.
        Thread tool = new Thread(group, () -> run(texts.get(0), arguments), "main");
        tool.start();
        tool.join();
        out.target = printed;
        err.target = complained;
        for (Runnable hook : hooks) {
            Thread last = new Thread(group, hook);
            last.start();
            last.join();
        }
        closeAdmins(group);
        answers.writeInt(status == null ? 0 : status);
        answers.writeInt((int) remaining(group));
        for (ByteArrayOutputStream each : List.of(printed, complained)) {
            byte[] bytes = each.toByteArray();
            answers.writeInt(bytes.length);
            answers.write(bytes);
        }
        answers.flush();
    }

    static void run(String name, String[] arguments) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Ended) return;
            status = 1;
            System.err.print("Exception in thread \"main\" ");
            error.getCause().printStackTrace();
        } catch (ReflectiveOperationException error) {
            status = 1;
            error.printStackTrace();
        }
    }

    /** The first status counts, and nothing is heard afterwards: a tool may catch what ends it, and exit again. */
    static synchronized void end(int code, String message) {
        if (status == null) {
            status = code;
            if (message != null) System.err.println(message);
            out.target = err.target = OutputStream.nullOutputStream();
        }
        throw new Ended();
    }

    /** kafka-transactions leaves its client to the end of the machine. */
    static void closeAdmins(ThreadGroup group) throws ReflectiveOperationException {
        for (Thread thread : threads(group)) {
            if (!thread.getName().startsWith("kafka-admin-client-thread")) continue;
            Object task = fieldOf(Thread.class, "target", thread);
            if (task == null) continue; // It has just ended.
            ((Admin) fieldOf(task.getClass(), "this$0", task)).close(Duration.ZERO);
        }
    }

    static Object fieldOf(Class<?> kind, String name, Object of) throws ReflectiveOperationException {
        Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    /** How many threads of the tool run on; most of them end a moment after it. */
    static long remaining(ThreadGroup group) throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
        while (!threads(group).isEmpty() && System.nanoTime() < deadline) Thread.sleep(1);
        return threads(group).size();
    }

    /** Without those of the pool that all tools share. */
    static List<Thread> threads(ThreadGroup group) {
        Thread[] threads = new Thread[group.activeCount() + 16];
        int count = group.enumerate(threads);
        return Arrays.stream(threads, 0, count)
                .filter(thread -> !thread.getName().startsWith("ForkJoinPool.commonPool"))
                .toList();
    }
}
