package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// tokenTimeout bounds one call of kafka.sasl.token_url.
const tokenTimeout = 10 * time.Second

// kafka makes the connection settings of every Kafka client from the configuration.
func kafka(cfg *config.Config) (stream.KafkaConfig, error) {
	k := cfg.Kafka
	tls, err := k.TLS.Build()
	if err != nil {
		return stream.KafkaConfig{}, fmt.Errorf("kafka.tls: %w", err)
	}
	id, err := cfg.InstanceID()
	if err != nil {
		return stream.KafkaConfig{}, err
	}
	out := stream.KafkaConfig{
		Brokers: k.Brokers, ClientID: k.ClientID + "-" + id, Version: k.Version,
		SessionTimeout: k.SessionTimeout, RebalanceTimeout: k.RebalanceTimeout, TLS: tls,
		SASL: stream.SASL{Mechanism: k.SASL.Mechanism, Username: k.SASL.Username, Password: k.SASL.Password.Reveal()},
	}
	switch {
	case k.SASL.TokenFile != "":
		out.SASL.Token = stream.TokenFile(k.SASL.TokenFile)
	case k.SASL.TokenURL != "":
		out.SASL.Token = stream.ClientCredentials(&http.Client{Timeout: tokenTimeout}, k.SASL.TokenURL, k.SASL.ClientID,
			k.SASL.ClientSecret.Reveal(), k.SASL.Scopes, time.Now)
	case k.SASL.Token != "":
		out.SASL.Token = stream.StaticToken(k.SASL.Token.Reveal())
	}
	return out, nil
}
