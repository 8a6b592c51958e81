package config

import (
	"fmt"
	"io"
	"strings"
)

// Value is a setting as `vitrina config show` prints it.
type Value struct {
	Key   string `json:"key"`
	Value string `json:"value"` // a secret: ***
	Set   bool   `json:"set"`   // differs from the default
}

// Show lists every setting of c with its present value, secrets hidden.
func (c *Config) Show() []Value {
	base := Default()
	var out []Value
	for _, k := range Keys() {
		v := Value{Key: k.Path, Value: k.value(c), Set: k.value(c) != k.value(base)}
		if k.Secret {
			v.Value = Secret(v.Value).String()
		}
		out = append(out, v)
	}
	return out
}

// Reference writes the reference of all settings as Markdown: docs/configuration.md.
func Reference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(referenceHead)
	section := ""
	for _, k := range Keys() {
		top, _, nested := strings.Cut(k.Path, ".")
		if !nested {
			top = "general"
		}
		if top != section {
			section = top
			b.WriteString("\n## " + section + "\n\n| key | variable | type | default | meaning |\n|---|---|---|---|---|\n")
		}
		fallback := ""
		if k.Default != "" {
			fallback = "`" + k.Default + "`"
		}
		notes := ""
		if k.Reload {
			notes += " *Reloadable.*"
		}
		if k.File {
			notes += fmt.Sprintf(" *Or from a file: %#q, %#q.*", k.Path+fileSuffix, k.Env+strings.ToUpper(fileSuffix))
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s%s |\n", k.Path, k.Env, k.Type, fallback, strings.ReplaceAll(k.Desc, "|", "\\|"), notes)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the configuration reference: %w", err)
	}
	return nil
}

const referenceHead = `# Configuration

<!-- Written by "vitrina config reference"; a test compares it with the program. Do not edit. -->

Settings come from, each over the one before: defaults, a YAML file (` + "`--config`, or `VITRINA_CONFIG`" + `), environment
variables, flags (the main ones by name, every one as ` + "`--set key=value`" + `).

- An unknown key in the file, an unknown ` + "`VITRINA_`" + ` variable and an unknown ` + "`--set`" + ` key are errors that name the nearest known
  one; all faults are listed at once. A variable set to nothing sets nothing. The variables that Kubernetes adds for
  services called vitrina are ignored.
- Durations carry a unit: ` + "`500ms`, `30s`, `2m`, `168h`" + `. Lists are YAML lists, or separated by commas.
- Secrets can come from files: the key with ` + "`_file`" + ` behind it, the variable with ` + "`_FILE`" + `. No log, error or endpoint shows one.
- ` + "`PG*`" + ` variables (PGHOST, PGUSER, PGPASSWORD, ...) count when ` + "`postgres.dsn`" + ` is empty. The standard ` + "`OTEL_*`" + ` variables turn
  traces on: ` + "`OTEL_EXPORTER_OTLP_ENDPOINT`" + ` is enough.
- ` + "`vitrina config show`" + ` prints what an instance would use, ` + "`vitrina check`" + ` tries it.

` + "```yaml" + `
kafka:
  brokers: [kafka-1:9092, kafka-2:9092]
postgres:
  dsn_file: /run/secrets/postgres-dsn
clickhouse:
  dsn: clickhouse://analytics@clickhouse:9000/pin_analytics
catalog:
  promotions:
    enabled: true
` + "```" + `
`
