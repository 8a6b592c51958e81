package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	kgoscram "github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/xdg-go/scram"
)

// The SASL mechanisms.
const (
	MechanismPlain       = "PLAIN"
	MechanismSCRAM256    = "SCRAM-SHA-256"
	MechanismSCRAM512    = "SCRAM-SHA-512"
	MechanismOAuthBearer = "OAUTHBEARER"
)

// SASL is the authentication towards the brokers.
type SASL struct {
	Mechanism string // one of the constants; empty: none
	Username  string // PLAIN and SCRAM
	Password  string // PLAIN and SCRAM
	Token     TokenSource
}

// TokenSource returns a valid OAUTHBEARER token. It is called for every new connection and must be safe for concurrent use.
type TokenSource func(context.Context) (string, error)

func (s SASL) validate() error {
	switch s.Mechanism {
	case "":
		return nil
	case MechanismPlain, MechanismSCRAM256, MechanismSCRAM512:
		if s.Username == "" || s.Password == "" {
			return fmt.Errorf("kafka.sasl.mechanism %s needs kafka.sasl.username and kafka.sasl.password", s.Mechanism)
		}
		return nil
	case MechanismOAuthBearer:
		if s.Token == nil {
			return fmt.Errorf("kafka.sasl.mechanism %s needs a token: set kafka.sasl.token_file or kafka.sasl.token_url", s.Mechanism)
		}
		return nil
	default:
		return fmt.Errorf("kafka.sasl.mechanism %q is not one of %s, %s, %s, %s", s.Mechanism, MechanismPlain, MechanismSCRAM256, MechanismSCRAM512, MechanismOAuthBearer)
	}
}

func (s SASL) sarama(ctx context.Context, cfg *sarama.Config) {
	if s.Mechanism == "" {
		return
	}
	net := &cfg.Net.SASL
	net.Enable = true
	net.Version = sarama.SASLHandshakeV1
	net.Mechanism = sarama.SASLMechanism(s.Mechanism)
	net.User, net.Password = s.Username, s.Password
	switch s.Mechanism {
	case MechanismSCRAM256:
		net.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256} }
	case MechanismSCRAM512:
		net.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512} }
	case MechanismOAuthBearer:
		net.TokenProvider = tokenProvider{ctx: ctx, source: s.Token}
	}
}

func (s SASL) franz() sasl.Mechanism {
	switch s.Mechanism {
	case MechanismPlain:
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism()
	case MechanismSCRAM256:
		return kgoscram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism()
	case MechanismSCRAM512:
		return kgoscram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism()
	case MechanismOAuthBearer:
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := s.Token(ctx)
			return oauth.Auth{Token: token}, err
		})
	default:
		return nil
	}
}

// scramClient is what sarama asks for around a SCRAM conversation.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("start SCRAM authentication: %w", err)
	}
	c.conversation = client.NewConversation()
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }
func (c *scramClient) Done() bool                            { return c.conversation.Done() }

// tokenProvider gives sarama, which knows no context here, the tokens of a source.
type tokenProvider struct {
	ctx    context.Context //nolint:containedctx // sarama's interface has no context
	source TokenSource
}

const tokenTimeout = 10 * time.Second

func (p tokenProvider) Token() (*sarama.AccessToken, error) {
	ctx, cancel := context.WithTimeout(p.ctx, tokenTimeout)
	defer cancel()
	token, err := p.source(ctx)
	if err != nil {
		return nil, err
	}
	return &sarama.AccessToken{Token: token}, nil
}

// StaticToken is a token that never changes, for tests.
func StaticToken(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}

// TokenFile reads the token from a file each time, as Kubernetes renews it.
func TokenFile(path string) TokenSource {
	return func(context.Context) (string, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read kafka.sasl.token_file: %w", err)
		}
		token := strings.TrimSpace(string(b))
		if token == "" {
			return "", fmt.Errorf("kafka.sasl.token_file %s is empty", path)
		}
		return token, nil
	}
}

// ClientCredentials asks an OAuth 2.0 token endpoint (RFC 6749, section 4.4) and keeps a token for three quarters of its life.
func ClientCredentials(client *http.Client, endpoint, id, secret string, scopes []string, clock func() time.Time) TokenSource {
	var (
		mu      sync.Mutex
		token   string
		expires time.Time
	)
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		now := clock()
		if token != "" && now.Before(expires) {
			return token, nil
		}
		fresh, life, err := requestToken(ctx, client, endpoint, id, secret, scopes)
		if err != nil {
			return "", fmt.Errorf("get an OAUTHBEARER token from kafka.sasl.token_url: %w", err)
		}
		token, expires = fresh, now.Add(life*3/4)
		return token, nil
	}
}

func requestToken(ctx context.Context, client *http.Client, endpoint, id, secret string, scopes []string) (string, time.Duration, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret))
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err := errors.Join(readErr, resp.Body.Close()); err != nil {
		return "", 0, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		// The body may repeat what was sent, so it is not shown.
		return "", 0, fmt.Errorf("the endpoint answered %s", resp.Status)
	}
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.AccessToken == "" {
		return "", 0, errors.New("the answer holds no access_token")
	}
	return answer.AccessToken, time.Duration(answer.ExpiresIn) * time.Second, nil
}
