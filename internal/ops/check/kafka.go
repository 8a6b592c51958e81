package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

const areaKafka = "kafka"

func kafka(ctx context.Context, o Options, r *report) {
	if !seeds(ctx, o, r) || !login(ctx, o, r) {
		return
	}
	admin, err := stream.NewAdmin(o.Kafka)
	if err != nil {
		r.add(areaKafka, "client", Error, err.Error(), "mend the kafka settings")
		return
	}
	defer admin.Close()
	topics(ctx, o, admin, r)
}

// seeds dials each configured broker: one that is wrong does harm only on the day when the others are away.
func seeds(ctx context.Context, o Options, r *report) (reached bool) {
	var down []string
	for _, addr := range o.Kafka.Brokers {
		conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", addr)
		if err != nil {
			down = append(down, addr+": "+err.Error())
			continue
		}
		reached = true
		_ = conn.Close() //nolint:errcheck // it was only opened to see whether it opens
	}
	const fix = "start the broker, or correct kafka.brokers (VITRINA_KAFKA_BROKERS); from inside a container 127.0.0.1 is the container"
	switch {
	case !reached:
		r.add(areaKafka, "kafka.brokers", Error, "no broker can be reached: "+strings.Join(down, "; "), fix)
	case len(down) > 0:
		r.add(areaKafka, "kafka.brokers", Warning, "brokers that cannot be reached: "+strings.Join(down, "; "), fix)
	}
	return reached
}

// login speaks Kafka with the cluster: TLS, SASL and the addresses that the brokers give out are right only if it succeeds.
func login(ctx context.Context, o Options, r *report) bool {
	client, err := kgo.NewClient(append(o.Kafka.KgoOpts(), kgo.RetryTimeout(3*time.Second), kgo.DialTimeout(3*time.Second))...)
	if err != nil {
		r.add(areaKafka, "client", Error, err.Error(), "mend the kafka settings")
		return false
	}
	defer client.Close()
	bound, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(bound, client)
	if err != nil {
		problem, fix := loginProblem(err, o.Config.Kafka)
		r.add(areaKafka, "connection", Error, problem, fix)
		return false
	}
	var unreachable []string
	for _, b := range resp.Brokers {
		addr := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", addr)
		if err != nil {
			unreachable = append(unreachable, addr)
			continue
		}
		_ = conn.Close() //nolint:errcheck // it was only opened to see whether it opens
	}
	if len(unreachable) > 0 {
		r.add(areaKafka, "advertised.listeners", Error, "brokers give out addresses that cannot be reached from here: "+strings.Join(unreachable, ", "),
			"set advertised.listeners of these brokers to addresses that this machine resolves and reaches, or start them")
	} else {
		r.add(areaKafka, "connection", OK, fmt.Sprintf("%d brokers answer", len(resp.Brokers)), "")
	}
	if len(resp.Brokers) < 3 {
		r.add(areaKafka, "brokers", Warning, fmt.Sprintf("the cluster has %d, so that no topic has 3 replicas: one lost disk loses events and state", len(resp.Brokers)), "run 3 brokers or more in production")
	}
	return true
}

func loginProblem(err error, k config.Kafka) (problem, fix string) {
	problem = "the brokers refuse to talk: " + err.Error()
	switch mechanism := k.SASL.Mechanism; {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "SASL: user, password or token is wrong (" + err.Error() + ")", "correct kafka.sasl.username and kafka.sasl.password (or the token)"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "SASL: the brokers do not take " + mechanism + " (" + err.Error() + ")", "set kafka.sasl.mechanism to one that the listener has in sasl.enabled.mechanisms"
	case errors.Is(err, kerr.IllegalSaslState):
		return "SASL: the listener of this port knows no SASL (" + err.Error() + ")", "leave kafka.sasl out, or use the port of the SASL listener"
	case strings.Contains(err.Error(), "tls") || strings.Contains(err.Error(), "x509"):
		return "TLS: " + err.Error(), "set kafka.tls.ca_file to the authority that signs the brokers' certificates, and use the port of the TLS listener"
	case errors.Is(err, io.EOF) || strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "reset by peer") || strings.Contains(err.Error(), "closed"):
		if mechanism == "" {
			return problem, "the listener probably wants SASL or TLS: set kafka.sasl.mechanism or kafka.tls.enabled"
		}
		return "SASL: the brokers close the connection at the login (" + err.Error() + ")",
			"user, password or mechanism is wrong, or the listener of this port wants no SASL, or TLS: check kafka.sasl and kafka.tls.enabled"
	}
	return problem, "check kafka.brokers, kafka.tls and kafka.sasl, and the brokers' logs"
}

func topics(ctx context.Context, o Options, admin *stream.Admin, r *report) {
	if len(o.Groups) == 0 {
		return
	}
	findings, err := admin.Plan(ctx, o.Topics, o.Groups...)
	if err != nil {
		r.add(areaKafka, "topics", Error, "they cannot be described: "+err.Error(), "give the user DESCRIBE and DESCRIBE_CONFIGS on the topics")
		return
	}
	for _, f := range findings {
		severity, fix := Error, f.Fix
		if f.Mendable() {
			fix = "run `vitrina topics apply`: it will " + f.Fix
		}
		if len(f.Alter) > 0 && f.Alter["cleanup.policy"] == "" && f.Alter["retention.ms"] == "" && f.Alter["retention.bytes"] == "" {
			severity = Warning
		}
		r.add(areaKafka, f.Topic, severity, f.Problem, fix)
	}
	var names []string
	sources := map[string]stream.GroupTopics{}
	for _, g := range o.Groups {
		sources[g.Source] = g
		names = append(names, g.Source)
		for _, t := range stream.OwnTopics(g, o.Topics) {
			names = append(names, t.Name)
		}
	}
	known, err := admin.Topics(ctx, names...)
	if err != nil {
		r.add(areaKafka, "topics", Error, err.Error(), "look at the brokers")
		return
	}
	for _, name := range names {
		t, ok := known[name]
		if !ok {
			continue
		}
		if t.Replicas < 3 {
			r.add(areaKafka, name, Warning, fmt.Sprintf("it has %d replicas: one lost disk may lose its records", t.Replicas), "give it 3 (kafka.replication_factor for new topics; kafka-reassign-partitions.sh for this one)")
		}
		if len(t.Leaderless) > 0 {
			r.add(areaKafka, name, Error, fmt.Sprintf("partitions %v have no leader", t.Leaderless), "start the brokers that hold them")
		}
		if len(findings) == 0 && len(known) == len(names) && name == names[len(names)-1] {
			r.add(areaKafka, "topics", OK, fmt.Sprintf("all %d are there, with the right partitions and policies", len(names)), "")
		}
	}
	topicSettings(ctx, o, admin, known, sources, r)
}

// topicSettings judges settings that are others' to make.
func topicSettings(ctx context.Context, o Options, admin *stream.Admin, known map[string]stream.Topic, sources map[string]stream.GroupTopics, r *report) {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	if len(names) == 0 {
		return
	}
	described, err := admin.Kadm().DescribeTopicConfigs(ctx, names...)
	if err != nil {
		r.add(areaKafka, "topics", Warning, "their settings cannot be described: "+err.Error(), "give the user DESCRIBE_CONFIGS on the topics")
		return
	}
	var schedule time.Duration
	for _, d := range o.Config.Popularity.RetryDelays {
		schedule += d
	}
	for _, d := range described {
		if d.Err != nil {
			r.add(areaKafka, d.Name, Warning, "its settings cannot be described: "+d.Err.Error(), "give the user DESCRIBE_CONFIGS on it")
			continue
		}
		values := map[string]string{}
		for _, c := range d.Configs {
			if c.Value != nil {
				values[c.Key] = *c.Value
			}
		}
		if n, err := strconv.Atoi(values["min.insync.replicas"]); err == nil && n < 2 && known[d.Name].Replicas >= 3 {
			r.add(areaKafka, d.Name, Warning, "min.insync.replicas is 1: an acknowledged record may be on one disk only", "set it to 2 (kafka.min_insync_replicas for topics of ours)")
		}
		g, isSource := sources[d.Name]
		if !isSource {
			continue
		}
		if !g.Table && strings.Contains(values["cleanup.policy"], "compact") {
			r.add(areaKafka, d.Name, Error, "it is compacted (cleanup.policy="+values["cleanup.policy"]+"), which drops price changes", "have its owner set cleanup.policy=delete")
		}
		retention(d.Name, values["retention.ms"], schedule, r)
	}
}

// retention judges how long a source topic keeps what this program may need again: after an outage, for a replay, for a rebuild.
func retention(topic, value string, schedule time.Duration, r *report) {
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ms < 0 {
		return
	}
	const fix = "have its owner raise retention.ms: 7 days survive a long weekend without the program"
	switch keeps := time.Duration(min(ms, 1<<40)) * time.Millisecond; {
	case keeps < schedule:
		r.add(areaKafka, topic, Error, fmt.Sprintf("it keeps records for %s only, less than the retry schedule takes (%s, popularity.retry_delays)", keeps, schedule), fix)
	case keeps < 24*time.Hour:
		r.add(areaKafka, topic, Warning, fmt.Sprintf("it keeps records for %s only: an outage of that length loses events", keeps), fix)
	}
}
