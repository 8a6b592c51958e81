package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/pin-marketplace/vitrina/internal/config"
)

func TestSecretIsPrintedNowhere(t *testing.T) {
	s := config.Secret("hunter2")
	c := config.Default()
	c.Postgres.DSN, c.ClickHouse.DSN, c.HTTP.AdminToken = s, s, s
	c.Kafka.SASL = config.SASL{Password: s, Token: s, ClientSecret: s}
	var out bytes.Buffer
	for _, value := range []any{s, &s, *c, c, c.Kafka, []config.Secret{s}, map[string]config.Secret{"s": s}, struct{ S any }{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%f", "%c"} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", slog.Any("v", value))
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", slog.Any("v", value))
		b, err := json.Marshal(value)
		require.NoError(t, err)
		out.Write(b)
		b, err = yamlv3.Marshal(value)
		require.NoError(t, err)
		out.Write(b)
	}
	fmt.Fprintln(&out, c.Show())
	for _, form := range []string{"hunter2", "68756e74657232", "68756E74657232", "0x68, 0x75", "104, 117"} {
		for line := range strings.Lines(out.String()) {
			require.NotContains(t, line, form)
		}
	}
	require.Contains(t, out.String(), "***")
	require.Equal(t, "hunter2", s.Reveal())
	require.Empty(t, config.Secret("").String())
}

func TestSecretsFindsPasswordsInConnectionStrings(t *testing.T) {
	t.Setenv("PGPASSWORD", "from-the-environment")
	c := config.Default()
	c.Postgres.DSN = "postgres://u:p%40ss@h/db"
	c.ClickHouse.DSN = "clickhouse://u:click%2Fpass@h:9000/db"
	c.HTTP.AdminToken = "t0ken"
	require.ElementsMatch(t, []string{"t0ken", "p@ss", "click/pass", "from-the-environment"}, c.Secrets())
}
