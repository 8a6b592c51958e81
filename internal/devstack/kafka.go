package devstack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaPOM asks Maven for the broker and for a logger, without which the broker logs nothing.
const kafkaPOM = `<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>vitrina</groupId>
  <artifactId>devstack-kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version></dependency>
  </dependencies>
</project>
`

// kafkaLogging sends what is worth reading to the server's log.
const kafkaLogging = `status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
`

// kafkaJars is Apache Kafka 4.4.0 with everything it needs on its class path.
func kafkaJars() artifact {
	return artifact{
		name: "kafka-4.4.0",
		what: "Apache Kafka 4.4.0 (Maven, 43 MB)",
		fetch: func(ctx context.Context, dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(kafkaPOM), 0o644); err != nil {
				return err
			}
			return mavenTool().run(ctx, dir, "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
				"-DoutputDirectory=lib", "-DincludeScope=runtime")
		},
	}
}

// Kafka is one node of Apache Kafka that is broker and controller.
type Kafka struct {
	*service
	java      string
	jars      string
	clusterID string
	port      int
	control   int
}

// StartKafka starts Apache Kafka and returns once it answers. Topics are never created by themselves; Options.Settings go into
// server.properties, Options.JVM to its Java machine.
func StartKafka(ctx context.Context, opts Options) (*Kafka, error) {
	java, err := javaTool().path()
	if err != nil {
		return nil, fmt.Errorf("start Apache Kafka: %w", err)
	}
	jars, err := kafkaJars().ensure(ctx, opts)
	if err != nil {
		return nil, err
	}
	dir, err := openWorkdir(opts.Dir, "kafka")
	if err != nil {
		return nil, err
	}
	k := &Kafka{service: newService("kafka", opts, dir), java: java, jars: filepath.Join(jars, "lib", "*")}
	k.build, k.probe = k.command, k.ping
	if err := k.boot(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Apache Kafka: %w", err), k.Stop(ctx))
	}
	return k, nil
}

func (k *Kafka) boot(ctx context.Context) error {
	if err := k.identify(); err != nil {
		return err
	}
	if err := os.WriteFile(k.dir.join("log4j2.properties"), []byte(kafkaLogging), 0o644); err != nil {
		return err
	}
	return k.startAnew(ctx, func() error { return k.configure(ctx) })
}

// identify reads the cluster's id, or makes one for a new cluster.
func (k *Kafka) identify() error {
	path := k.dir.join("cluster.id")
	raw, err := os.ReadFile(path)
	if err == nil {
		k.clusterID = string(raw)
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return fmt.Errorf("make a cluster id: %w", err)
	}
	id[0] &= 0x7f // base64 of an id must not begin with "-", or it would look like a flag
	k.clusterID = base64.RawURLEncoding.EncodeToString(id[:])
	return os.WriteFile(path, []byte(k.clusterID), 0o644)
}

// configure chooses the ports, writes server.properties and formats the data directory if it is new.
func (k *Kafka) configure(ctx context.Context) (err error) {
	if k.port, err = portOr(ctx, k.opts.Port); err != nil {
		return err
	}
	if k.control, err = freePort(ctx); err != nil {
		return err
	}
	settings := map[string]string{
		"process.roles":              "broker,controller",
		"node.id":                    "1",
		"controller.quorum.voters":   "1@" + loopback(k.control),
		"listeners":                  "PLAINTEXT://" + loopback(k.port) + ",CONTROLLER://" + loopback(k.control),
		"advertised.listeners":       "PLAINTEXT://" + loopback(k.port),
		"controller.listener.names":  "CONTROLLER",
		"log.dirs":                   k.dir.join("data"),
		"num.partitions":             strconv.Itoa(max(k.opts.Partitions, 1)),
		"message.max.bytes":          maxMessageBytes,
		"auto.create.topics.enable":  "false",
		"default.replication.factor": "1",
		"min.insync.replicas":        "1",

		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "4", // the default of 50 costs a second of start and files for nothing here
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		// After a crash the controller takes the broker back only when its old session is over: 9 s by default.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",
	}
	maps.Copy(settings, k.opts.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, strings.ReplaceAll(settings[name], `\`, `\\`))
	}
	if err := os.WriteFile(k.properties(), []byte(text.String()), 0o644); err != nil {
		return err
	}
	if _, err := os.Stat(k.dir.join("data", "meta.properties")); err == nil {
		return nil
	}
	cmd := k.javaCommand(ctx, "kafka.tools.StorageTool", "format", "-t", k.clusterID, "-c", k.properties())
	dieWithParent(cmd, syscall.SIGKILL)
	if err := runQuietly(cmd); err != nil {
		return fmt.Errorf("format Kafka's data directory: %w", err)
	}
	return nil
}

func (k *Kafka) properties() string { return k.dir.join("server.properties") }

func (k *Kafka) javaCommand(ctx context.Context, class string, args ...string) *exec.Cmd {
	flags := []string{"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
		"-Dlog4j2.configurationFile=" + k.dir.join("log4j2.properties")}
	flags = append(flags, k.opts.JVM...)
	cmd := exec.CommandContext(ctx, k.java, slices.Concat(flags, []string{"-cp", k.jars, class}, args)...)
	cmd.Dir = k.dir.path
	return cmd
}

func (k *Kafka) command(ctx context.Context) (*exec.Cmd, error) {
	return k.javaCommand(ctx, "kafka.Kafka", k.properties()), nil
}

// ping asks for the cluster's metadata and makes sure that it is this cluster that answers, with its broker registered.
func (k *Kafka) ping(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer client.Close()
	response, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if response.ClusterID == nil || *response.ClusterID != k.clusterID {
		return fmt.Errorf("another broker answers on port %d", k.port)
	}
	if len(response.Brokers) != 1 || response.ControllerID < 0 {
		return errors.New("the broker is not registered yet")
	}
	return nil
}

// Brokers are the addresses for clients.
func (k *Kafka) Brokers() []string { return []string{loopback(k.port)} }

// Port is the broker's port.
func (k *Kafka) Port() int { return k.port }
