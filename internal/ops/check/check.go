// Package check finds the mistakes that people make when they set the program up: it validates the configuration, reaches every
// dependency and says of each finding how to mend it. It changes nothing. Every probe is bounded, and all run whatever the others find.
package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	OK      Severity = "ok"
	Warning Severity = "warning" // it runs, but worse than it could, or not for long
	Error   Severity = "error"   // it does not run, or loses or corrupts something
)

// Finding is one thing that was looked at.
type Finding struct {
	Area     string   `json:"area"`    // configuration, state, kafka, postgres, clickhouse
	Subject  string   `json:"subject"` // topic, table, setting
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"` // what is wrong; of an ok finding what was seen
	Fix      string   `json:"fix,omitempty"`
}

// Options are what is checked.
type Options struct {
	Config     *config.Config
	Kafka      stream.KafkaConfig
	Topics     stream.TopicOptions
	Groups     []stream.GroupTopics // of the roles that are checked
	ClickHouse clickhouse.Config
	Clock      func() time.Time
}

// probeTime bounds each probe.
const probeTime = 20 * time.Second

type report struct {
	mu   sync.Mutex
	list []Finding
}

func (r *report) add(area, subject string, severity Severity, problem, fix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, Finding{area, subject, severity, problem, fix})
}

// Run probes everything and returns what it found, the worst first within each area. The texts hold no secret that the clients'
// errors do not hold; the caller redacts those.
func Run(ctx context.Context, o Options) []Finding {
	r := &report{}
	probes := map[string]func(context.Context, Options, *report){
		"configuration": settings, "state": state, "kafka": kafka, "postgres": database,
	}
	if slices.Contains(o.Config.Roles, config.RolePrice) || slices.Contains(o.Config.Roles, config.RoleAPI) {
		probes["clickhouse"] = facts
	}
	var wg sync.WaitGroup
	for area, probe := range probes {
		wg.Go(func() {
			bound, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			probe(bound, o, r)
			if bound.Err() != nil {
				r.add(area, "probe", Error, fmt.Sprintf("not everything could be looked at within %s", probeTime), "mend what else is found, and look at the network")
			}
		})
	}
	wg.Wait()
	rank := map[Severity]int{Error: 0, Warning: 1, OK: 2}
	areas := []string{"configuration", "state", "kafka", "postgres", "clickhouse"}
	slices.SortStableFunc(r.list, func(a, b Finding) int {
		if a.Area != b.Area {
			return slices.Index(areas, a.Area) - slices.Index(areas, b.Area)
		}
		if a.Severity != b.Severity {
			return rank[a.Severity] - rank[b.Severity]
		}
		return strings.Compare(a.Subject, b.Subject)
	})
	return r.list
}

// Invalid makes findings of a configuration that cannot be read: nothing else can be looked at then.
func Invalid(faults config.Faults) []Finding {
	r := &report{}
	for _, f := range faults {
		r.add("configuration", f.Key, Error, f.Problem, "mend it in "+cmp.Or(f.Source, "the configuration")+"; `vitrina config reference` explains every setting")
	}
	return r.list
}

func settings(_ context.Context, o Options, r *report) {
	c := o.Config
	found := false
	if err := c.Require(c.Roles...); err != nil {
		r.add("configuration", "roles", Error, err.Error(), "set what the roles need, or leave roles out")
		found = true
	}
	if slices.Contains(c.Roles, config.RoleAPI) {
		token := c.HTTP.AdminToken.Reveal()
		if token == "" {
			r.add("configuration", "http.admin_token", Warning, "there is none: every call of /admin is refused", "set VITRINA_ADMIN_TOKEN or VITRINA_ADMIN_TOKEN_FILE")
			found = true
		} else if len(token) < 16 {
			r.add("configuration", "http.admin_token", Warning, "it is short enough to be guessed", "take 32 random characters, as of `openssl rand -hex 16`")
			found = true
		}
	}
	if c.Kafka.TLS.InsecureSkipVerify {
		r.add("configuration", "kafka.tls.insecure_skip_verify", Warning, "any certificate is accepted: the encryption is worth nothing", "set kafka.tls.ca_file and leave it out")
		found = true
	}
	if c.Kafka.SASL.Mechanism == "PLAIN" && !c.Kafka.TLS.On() {
		r.add("configuration", "kafka.sasl", Warning, "PLAIN without TLS sends the password in clear text", "set kafka.tls.enabled, or use SCRAM-SHA-512")
		found = true
	}
	if !c.Catalog.Promotions.Enabled {
		r.add("configuration", "catalog.promotions.enabled", Warning, "it is off: promotion events are not consumed and boosts stay as they are", "set it to true when that is not meant")
		found = true
	}
	if !found {
		r.add("configuration", "settings", OK, "valid", "")
	}
}

// skewed judges the clock of a server. took is how long asking took: the answer may be off by as much.
func skewed(r *report, area string, here, there time.Time, took time.Duration) {
	off := here.Sub(there)
	if off < 0 {
		off = -off
	}
	const fix = "run NTP (chrony) on both machines"
	switch off -= took; {
	case off > 5*time.Minute:
		r.add(area, "clock", Error, fmt.Sprintf("it is off by %s from this machine's", off.Round(time.Second)), fix)
	case off > 2*time.Second:
		r.add(area, "clock", Warning, fmt.Sprintf("it is off by %s from this machine's", off.Round(100*time.Millisecond)), fix)
	}
}
