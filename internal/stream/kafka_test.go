package stream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// TestSaramaSettings: fact 1, and the bounds of facts 11 and 12. Each of them is a loss or a rebalance without end.
func TestSaramaSettings(t *testing.T) {
	k := KafkaConfig{Brokers: []string{"localhost:9092"}, ClientID: "vitrina-1"}
	cfg, err := k.Sarama(t.Context())
	require.NoError(t, err)
	require.Equal(t, sarama.WaitForAll, cfg.Producer.RequiredAcks)
	require.True(t, cfg.Producer.Idempotent)
	require.Equal(t, 1, cfg.Net.MaxOpenRequests)
	require.Equal(t, sarama.OffsetOldest, cfg.Consumer.Offsets.Initial)
	require.True(t, cfg.Consumer.Offsets.AutoCommit.Enable)
	require.True(t, cfg.Version.IsAtLeast(sarama.V2_8_0_0))
	require.Equal(t, 120*time.Second, cfg.Consumer.Group.Rebalance.Timeout)
	require.Equal(t, 150*time.Second, cfg.Net.ReadTimeout)
	require.Equal(t, 1000, cfg.Producer.Retry.Max)
	require.GreaterOrEqual(t, cfg.Consumer.Group.Session.Timeout, 10*time.Second)
	require.Less(t, cfg.Consumer.Group.Heartbeat.Interval, cfg.Consumer.Group.Session.Timeout/3)
	require.Equal(t, goka.CopartitioningStrategy, cfg.Consumer.Group.Rebalance.Strategy)
	require.Empty(t, cfg.Consumer.Group.InstanceId, "a static member keeps its partitions after SIGTERM")
	require.True(t, cfg.Consumer.Return.Errors)
	require.True(t, cfg.Producer.Return.Successes)
	require.Equal(t, MaxRecordBytes, cfg.Producer.MaxMessageBytes)
	require.Equal(t, "vitrina-1", cfg.ClientID)

	other, err := k.Sarama(t.Context())
	require.NoError(t, err)
	require.NotSame(t, cfg, other, "Goka's builders change their configuration")
	require.NotSame(t, goka.DefaultConfig(), cfg)
}

func TestKafkaConfigFaults(t *testing.T) {
	good := KafkaConfig{Brokers: []string{"localhost:9092"}, ClientID: "c"}
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(*KafkaConfig){
		"kafka.brokers is empty":            func(k *KafkaConfig) { k.Brokers = nil },
		"client id is empty":                func(k *KafkaConfig) { k.ClientID = "" },
		"is no Kafka version":               func(k *KafkaConfig) { k.Version = "new" },
		"2.8.0 is the first with topic ids": func(k *KafkaConfig) { k.Version = "2.7.0" },
		"below 10s every rebalance":         func(k *KafkaConfig) { k.SessionTimeout = 5 * time.Second },
		"must not lie below the session":    func(k *KafkaConfig) { k.RebalanceTimeout = 20 * time.Second },
		"kafka.sasl.mechanism \"GSSAPI\"":   func(k *KafkaConfig) { k.SASL.Mechanism = "GSSAPI" },
		"needs kafka.sasl.username":         func(k *KafkaConfig) { k.SASL = SASL{Mechanism: MechanismPlain, Password: "x"} },
		"needs a token":                     func(k *KafkaConfig) { k.SASL.Mechanism = MechanismOAuthBearer },
	} {
		k := good
		change(&k)
		require.ErrorContains(t, k.Validate(), want)
		_, err := k.Sarama(t.Context())
		require.Error(t, err)
		_, err = NewAdmin(k)
		require.Error(t, err)
	}
}

// TestSecuredBroker runs a consumer over TLS with each password mechanism: sarama's clients and franz-go's both log in.
func TestSecuredBroker(t *testing.T) {
	server, client := certificates(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.EnableSASL(), kfake.SeedTopics(1, "in"),
		kfake.Superuser("PLAIN", "u", "p"), kfake.Superuser("SCRAM-SHA-256", "u", "p"), kfake.Superuser("SCRAM-SHA-512", "u", "p"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	for _, mechanism := range []string{MechanismPlain, MechanismSCRAM256, MechanismSCRAM512} {
		t.Run(mechanism, func(t *testing.T) {
			k := KafkaConfig{Brokers: cluster.ListenAddrs(), ClientID: "c", TLS: client, SASL: SASL{Mechanism: mechanism, Username: "u", Password: "p"}}
			e := &env{t: t, cluster: cluster, kafka: k, log: &lines{}}
			e.admin, err = NewAdmin(k)
			require.NoError(t, err)
			t.Cleanup(e.admin.Close)
			e.client, err = kgo.NewClient(append(k.KgoOpts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
			require.NoError(t, err)
			t.Cleanup(e.client.Close)
			e.produce(rec("in", 0, "k", mechanism))
			var seen effects
			spec := collector("group-"+mechanism, "in")
			inner := spec.Callback
			spec.Callback = func(ctx Context, r *record.Record) { inner(ctx, r); seen.add(string(r.Value)) }
			e.start(spec, e.options())
			seen.wait(t, mechanism, 1)
			e.waitDone(spec)
		})
	}
	wrong := KafkaConfig{Brokers: cluster.ListenAddrs(), ClientID: "c", TLS: client, SASL: SASL{Mechanism: MechanismPlain, Username: "u", Password: "secret-word"}}
	admin, err := NewAdmin(wrong)
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	_, err = admin.Topics(t.Context(), "in")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret-word")
}

// certificates returns a server's and its clients' TLS settings.
func certificates(t *testing.T) (server, client *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func TestTokens(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "token")
	_, err := TokenFile(path)(ctx)
	require.ErrorContains(t, err, "kafka.sasl.token_file")
	require.NoError(t, os.WriteFile(path, []byte("\n"), 0o600))
	_, err = TokenFile(path)(ctx)
	require.ErrorContains(t, err, "is empty")
	source := TokenFile(path)
	for _, token := range []string{"one", "two"} { // read again each time
		require.NoError(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
		got, err := source(ctx)
		require.NoError(t, err)
		require.Equal(t, token, got)
	}
	k := KafkaConfig{Brokers: []string{"b:1"}, ClientID: "c", SASL: SASL{Mechanism: MechanismOAuthBearer, Token: source}}
	cfg, err := k.Sarama(ctx)
	require.NoError(t, err)
	token, err := cfg.Net.SASL.TokenProvider.Token()
	require.NoError(t, err)
	require.Equal(t, "two", token.Token)
	mechanism := k.SASL.franz()
	require.Equal(t, "OAUTHBEARER", mechanism.Name())
	_, first, err := mechanism.Authenticate(ctx, "b:1")
	require.NoError(t, err)
	require.Contains(t, string(first), "auth=Bearer two")
	require.NoError(t, os.Remove(path))
	_, err = cfg.Net.SASL.TokenProvider.Token()
	require.Error(t, err)
	static, err := StaticToken("s")(ctx)
	require.NoError(t, err)
	require.Equal(t, "s", static)
}

func TestClientCredentials(t *testing.T) {
	asked := 0
	answer := `{"access_token":"t1","expires_in":100}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		user, password, _ := r.BasicAuth()
		if user != "id" || password != "secret-word" || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "a b" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	source := ClientCredentials(server.Client(), server.URL, "id", "secret-word", []string{"a", "b"}, clock)
	for range 3 {
		token, err := source(t.Context())
		require.NoError(t, err)
		require.Equal(t, "t1", token)
	}
	require.Equal(t, 1, asked)
	now = now.Add(76 * time.Second)
	answer = `{"access_token":"t2","expires_in":100}`
	token, err := source(t.Context())
	require.NoError(t, err)
	require.Equal(t, "t2", token)

	_, err = ClientCredentials(server.Client(), server.URL, "id", "wrong-word", nil, clock)(t.Context())
	require.ErrorContains(t, err, "403")
	require.NotContains(t, err.Error(), "wrong-word")
	now = now.Add(time.Hour)
	answer = "{}"
	_, err = source(t.Context())
	require.ErrorContains(t, err, "no access_token")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = source(ended)
	require.ErrorIs(t, err, context.Canceled)
}
