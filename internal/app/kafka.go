package app

import (
	"fmt"
	"net/http"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// KafkaConfig is how this instance reaches the brokers.
func KafkaConfig(cfg *config.Config, clock func() time.Time) (stream.KafkaConfig, error) {
	instance, err := cfg.InstanceID()
	if err != nil {
		return stream.KafkaConfig{}, err
	}
	k := stream.KafkaConfig{
		Brokers:          cfg.Kafka.Brokers,
		ClientID:         cfg.Kafka.ClientID + "-" + instance,
		Version:          cfg.Kafka.Version,
		SessionTimeout:   cfg.Kafka.SessionTimeout,
		RebalanceTimeout: cfg.Kafka.RebalanceTimeout,
		SASL: stream.SASL{
			Mechanism: cfg.Kafka.SASL.Mechanism,
			Username:  cfg.Kafka.SASL.Username,
			Password:  cfg.Kafka.SASL.Password.Reveal(),
		},
	}
	if cfg.Kafka.TLS.On() {
		tls, err := cfg.Kafka.TLS.Build()
		if err != nil {
			return k, fmt.Errorf("kafka.tls: %w", err)
		}
		k.TLS = tls
	}
	s := cfg.Kafka.SASL
	switch {
	case s.TokenFile != "":
		k.SASL.Token = stream.TokenFile(s.TokenFile)
	case s.TokenURL != "":
		k.SASL.Token = stream.ClientCredentials(&http.Client{Timeout: 10 * time.Second}, s.TokenURL, s.ClientID, s.ClientSecret.Reveal(), s.Scopes, clock)
	case s.Token != "":
		k.SASL.Token = stream.StaticToken(s.Token.Reveal())
	}
	return k, nil
}

// TopicOptions are the settings of the topics that this project owns.
func TopicOptions(cfg *config.Config) stream.TopicOptions {
	return stream.TopicOptions{Replication: int16(cfg.Kafka.ReplicationFactor), MinInsync: cfg.Kafka.MinInsyncReplicas} //nolint:gosec // validated: -1 to 100
}

// GroupTopics lists the topics of the given consumer roles; other names are left out.
func GroupTopics(roles ...string) []stream.GroupTopics {
	var out []stream.GroupTopics
	for _, role := range roles {
		c, ok := config.ConsumerOf(role)
		if !ok {
			continue
		}
		stateful := role != config.RolePrice
		out = append(out, stream.GroupTopics{Group: c.Group, Source: c.Topic, Table: stateful, Loop: stateful, DeadLetter: c.DLQ, Lasting: c.Role == config.RolePopularity})
	}
	return out
}
