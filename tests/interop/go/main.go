// Does with rocketmq-client-go what standard input says, one command a line, and reports JSON lines; judges nothing.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type fields map[string]any

type command struct {
	call      int
	name      string
	arguments map[string]string
}

type stoppable interface{ Shutdown() error }

type stopFunc func()

func (stop stopFunc) Shutdown() error {
	stop()
	return nil
}

var (
	namesrv   primitive.NamesrvAddr
	out       sync.Mutex
	table     sync.Mutex
	producers = map[string]rocketmq.Producer{}
	running   = map[int]stoppable{}
	failed    = false
)

func main() {
	namesrv = primitive.NamesrvAddr{os.Args[1]}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		go perform(parse(lines.Text()))
	}
	for _, each := range running {
		_ = each.Shutdown()
	}
	for _, each := range producers {
		_ = each.Shutdown()
	}
	if failed {
		os.Exit(1)
	}
}

func parse(line string) command {
	words := strings.Split(line, " ")
	call, _ := strconv.Atoi(words[0])
	arguments := map[string]string{}
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		arguments[key], _ = url.QueryUnescape(value)
	}
	return command{call, words[1], arguments}
}

func perform(c command) {
	var err error
	switch c.name {
	case "send":
		err = send(c)
	case "load":
		err = load(c)
	case "consume":
		err = consume(c)
	case "stop":
		err = stop(c.number("consumer", 0))
	default:
		err = fmt.Errorf("unknown command %s", c.name)
	}
	if err != nil {
		failed = true
		c.report("done", fields{"ok": false, "error": err.Error()})
		return
	}
	c.report("done", fields{"ok": true})
}

func send(c command) error {
	sender, err := sender(c.text("group", "go_producer"), c.text("mode", "sync"))
	if err != nil {
		return err
	}
	ctx, count := context.Background(), c.number("count", 1)
	switch c.text("mode", "sync") {
	case "sync", "ordered":
		for i := 0; i < count; i++ {
			message := c.message(i)
			result, err := sender.SendSync(ctx, message)
			if err != nil {
				return err
			}
			c.sent(i, result, message)
		}
	case "oneway":
		for i := 0; i < count; i++ {
			message := c.message(i)
			if err := sender.SendOneWay(ctx, message); err != nil {
				return err
			}
			c.sent(i, nil, message)
		}
	case "async":
		return sendAsync(c, sender, count)
	case "batch":
		var batch []*primitive.Message
		for i := 0; i < count; i++ {
			batch = append(batch, c.message(i))
		}
		result, err := sender.SendSync(ctx, batch...)
		if err != nil {
			return err
		}
		c.sent(0, result, batch[0])
	}
	return nil
}

func sendAsync(c command, sender rocketmq.Producer, count int) error {
	answers := make(chan error, count)
	for i := 0; i < count; i++ {
		index, message := i, c.message(i)
		err := sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil {
				c.sent(index, result, message)
			}
			answers <- err
		}, message)
		if err != nil {
			return err
		}
	}
	for i := 0; i < count; i++ {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-time.After(30 * time.Second):
			return fmt.Errorf("%d callbacks did not come", count-i)
		}
	}
	return nil
}

// Sends from several goroutines, each to one queue, until it is stopped, whatever happens to the broker;
// reports what was acknowledged.
func load(c command) error {
	sender, err := sender(c.text("group", "go_load"), "ordered")
	if err != nil {
		return err
	}
	over := make(chan struct{})
	table.Lock()
	running[c.call] = stopFunc(func() { close(over) })
	table.Unlock()
	var group sync.WaitGroup
	shards, pause := c.number("shards", 1), time.Duration(c.number("pause", 0))*time.Millisecond
	for shard := 0; shard < shards; shard++ {
		group.Add(1)
		go func(shard int) {
			defer group.Done()
			for i := shard; ; i += shards {
				select {
				case <-over:
					return
				case <-time.After(pause):
				}
				message := c.message(i)
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				result, err := sender.SendSync(ctx, message)
				cancel()
				if err == nil {
					c.sent(i, result, message)
				}
			}
		}(shard)
	}
	group.Wait()
	return nil
}

// The user in whose name producers and consumers sign; empty, so that they do not sign, unless the environment names one.
func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("INTEROP_USER"), SecretKey: os.Getenv("INTEROP_PASSWORD")}
}

func sender(group string, mode string) (rocketmq.Producer, error) {
	table.Lock()
	defer table.Unlock()
	name := group
	options := []producer.Option{}
	if mode == "ordered" {
		name += "_ordered"
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if known, ok := producers[name]; ok {
		return known, nil
	}
	options = append(options, producer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		producer.WithGroupName(name), producer.WithInstanceName(name), producer.WithSendMsgTimeout(10*time.Second),
		producer.WithCredentials(credentials()))
	made, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	producers[name] = made
	return made, made.Start()
}

func (c command) message(index int) *primitive.Message {
	shard := index % c.number("shards", 1)
	text := fill(c.text("body", "message-{i}"), index, shard)
	body := []byte(text)
	if size := c.number("size", 0); size > 0 {
		body = []byte(strings.Repeat(text, size/len(text)+1)[:size])
	}
	message := primitive.NewMessage(c.text("topic", ""), body)
	tags := strings.Split(c.text("tags", ""), ",")
	if tag := tags[index%len(tags)]; tag != "" {
		message.WithTag(tag)
	}
	if keys := c.text("keys", ""); keys != "" {
		message.WithKeys([]string{fill(keys, index, shard)})
	}
	properties, _ := url.ParseQuery(c.text("properties", ""))
	for key, values := range properties {
		message.WithProperty(key, fill(values[0], index, shard))
	}
	if delay := c.number("delay", 0); delay > 0 {
		message.WithDelayTimeLevel(delay)
	}
	if c.name == "load" || c.text("mode", "sync") == "ordered" {
		message.WithShardingKey(strconv.Itoa(shard))
	}
	return message
}

func fill(template string, index int, shard int) string {
	return strings.ReplaceAll(strings.ReplaceAll(template, "{i}", strconv.Itoa(index)), "{s}", strconv.Itoa(shard))
}

func (c command) sent(index int, result *primitive.SendResult, message *primitive.Message) {
	answer := fields{"index": index, "status": "ONEWAY", "msg_id": "", "offset_msg_id": "", "queue_id": -1,
		"queue_offset": -1, "body": shown(message.Body)}
	if result != nil {
		answer["status"] = map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[result.Status]
		answer["msg_id"] = result.MsgID
		answer["offset_msg_id"] = result.OffsetMsgID
		answer["queue_id"] = result.MessageQueue.QueueId
		answer["queue_offset"] = result.QueueOffset
	}
	c.report("sent", answer)
}

func consume(c command) error {
	model := consumer.Clustering
	if c.text("model", "CLUSTERING") == "BROADCASTING" {
		model = consumer.BroadCasting
	}
	kind := c.text("kind", "push")
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		consumer.WithGroupName(c.text("group", "")),
		consumer.WithInstance("consumer-"+strconv.Itoa(c.call)),
		consumer.WithConsumerModel(model),
		consumer.WithCredentials(credentials()),
		consumer.WithConsumerOrder(kind == "orderly"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(int32(c.number("max_reconsume", -1))),
		consumer.WithSuspendCurrentQueueTimeMillis(200*time.Millisecond),
	)
	if err != nil {
		return err
	}
	failures := int32(c.number("failures", 0))
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.text("expression", "*")}
	err = made.Subscribe(c.text("topic", ""), selector,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				c.received(c.text("name", kind), message)
			}
			if messages[0].ReconsumeTimes >= failures {
				return consumer.ConsumeSuccess, nil
			}
			if kind == "orderly" {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = c.number("delay_level", 0)
			}
			return consumer.ConsumeRetryLater, nil
		})
	if err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return err
	}
	table.Lock()
	running[c.call] = made
	table.Unlock()
	return nil
}

func stop(call int) error {
	table.Lock()
	made, ok := running[call]
	delete(running, call)
	table.Unlock()
	if !ok {
		return nil
	}
	return made.Shutdown()
}

func (c command) received(name string, message *primitive.MessageExt) {
	c.report("received", fields{"consumer": name, "topic": message.Topic, "queue_id": message.Queue.QueueId,
		"queue_offset": message.QueueOffset, "body": shown(message.Body), "tags": message.GetTags(),
		"keys": message.GetKeys(), "properties": message.GetProperties(), "reconsume_times": message.ReconsumeTimes,
		"msg_id": message.MsgId, "offset_msg_id": message.OffsetMsgId, "physical_offset": message.CommitLogOffset,
		"born_timestamp": message.BornTimestamp, "store_timestamp": message.StoreTimestamp,
		"store_size": message.StoreSize})
}

func shown(body []byte) string {
	if len(body) <= 512 && utf8.Valid(body) {
		return string(body)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(body))
}

func (c command) text(key string, otherwise string) string {
	if value, ok := c.arguments[key]; ok {
		return value
	}
	return otherwise
}

func (c command) number(key string, otherwise int) int {
	value, err := strconv.Atoi(c.text(key, ""))
	if err != nil {
		return otherwise
	}
	return value
}

func (c command) report(event string, values fields) {
	values["call"] = c.call
	values["event"] = event
	line, _ := json.Marshal(values)
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}
