package devstack

import (
	"context"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	clickhouseUser = "vitrina"
	// servingQuery opens the ports and keeps the engine busy for ever: the server lives inside this one query.
	servingQuery = "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; " +
		"SELECT sleepEachRow(1) FROM system.numbers SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0 FORMAT Null"
	maxAnswer = 1 << 20
)

// clickhouseLibrary is ClickHouse 26.7 as a shared library.
func clickhouseLibrary() artifact {
	pkg := npmPackage{
		spec:      "@chdb/lib-linux-x64-gnu@26.7.3-stable.1",
		integrity: "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw==",
	}
	return artifact{
		name: "clickhouse-26.7.3",
		what: "ClickHouse 26.7 (npm, 570 MB unpacked)",
		fetch: func(ctx context.Context, dir string) error {
			return pkg.unpack(ctx, dir, func(path string) bool { return path == "libchdb.so" })
		},
	}
}

// clickhouseSpec is the order to a ClickHouse child.
type clickhouseSpec struct {
	Library string `json:"library"`
	Config  string `json:"config"`
}

func (s clickhouseSpec) arguments() []string {
	return []string{"clickhouse", "--config-file=" + s.Config, "--log-level=warning", "--query=" + servingQuery}
}

// ClickHouse is a ClickHouse server: the real engine inside a copy of this process, so its main calls RunChild first.
//
// Unlike a production server it aborts when a login over the native protocol fails (a wrong password, a database that does not exist)
// and when a client dies inside an insert; Options.AutoRestart brings it back, acknowledged rows survive.
type ClickHouse struct {
	*service
	library  string
	password string
	port     int
	httpPort int
}

// StartClickHouse starts ClickHouse and returns once it takes queries. Options.Settings are settings of its users; async_insert is
// off, so that an acknowledged insert is in its table.
func StartClickHouse(ctx context.Context, opts Options) (*ClickHouse, error) {
	if err := ClickHouseAvailable(); err != nil {
		return nil, err
	}
	if _, child := os.LookupEnv(childEnv); child {
		return nil, errors.New("this process was started to be a server: its main must call devstack.RunChild (tests: devtest.Main) first")
	}
	dir, err := clickhouseLibrary().ensure(ctx, opts)
	if err != nil {
		return nil, err
	}
	work, err := openWorkdir(opts.Dir, "clickhouse")
	if err != nil {
		return nil, err
	}
	c := &ClickHouse{service: newService("clickhouse", opts, work), library: filepath.Join(dir, "libchdb.so"), password: rand.Text()}
	c.build, c.probe = c.command, c.ping
	if err := c.startAnew(ctx, func() error { return c.configure(ctx) }); err != nil {
		return nil, errors.Join(fmt.Errorf("start ClickHouse: %w", err), c.Stop(ctx))
	}
	return c, nil
}

// configure chooses the ports and writes the configuration. The passwordless user is the one that the engine itself logs in as
// (no setting changes that); it may do nothing but serve.
func (c *ClickHouse) configure(ctx context.Context) (err error) {
	if c.port, err = portOr(ctx, c.opts.Port); err != nil {
		return err
	}
	if c.httpPort, err = freePort(ctx); err != nil {
		return err
	}
	settings := map[string]string{"async_insert": "0"}
	maps.Copy(settings, c.opts.Settings)
	var profile strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&profile, "<%s>%s</%s>", name, escape(settings[name]), name)
	}
	users := fmt.Sprintf(`<clickhouse>
  <users>
    <default>
      <no_password/><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
      <grants><query>GRANT SYSTEM LISTEN ON *.*</query><query>GRANT SELECT ON system.numbers</query></grants>
    </default>
    <%[1]s>
      <password>%[2]s</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
      <access_management>1</access_management>
    </%[1]s>
  </users>
  <profiles><default>%[3]s</default></profiles>
  <quotas><default/></quotas>
</clickhouse>
`, clickhouseUser, c.password, profile.String())
	config := fmt.Sprintf(`<clickhouse>
  <path>%s/</path>
  <users_config>%s</users_config>
  <listen_host>127.0.0.1</listen_host>
  <tcp_port>%d</tcp_port>
  <http_port>%d</http_port>
  <timezone>UTC</timezone>
</clickhouse>
`, escape(c.data()), escape(c.dir.join("users.xml")), c.port, c.httpPort)
	return errors.Join(
		os.WriteFile(c.dir.join("users.xml"), []byte(users), 0o600),
		os.WriteFile(c.dir.join("config.xml"), []byte(config), 0o600),
		os.MkdirAll(c.data(), 0o700),
	)
}

func escape(text string) string {
	var out strings.Builder
	// A strings.Builder never fails, and nothing else can.
	_ = xml.EscapeText(&out, []byte(text))
	return out.String()
}

func (c *ClickHouse) data() string { return c.dir.join("data") }

func (c *ClickHouse) command(ctx context.Context) (*exec.Cmd, error) {
	cmd, err := childCommand(ctx, "vitrina-clickhouse",
		childSpec{ClickHouse: &clickhouseSpec{Library: c.library, Config: c.dir.join("config.xml")}})
	if err != nil {
		return nil, err
	}
	cmd.Dir = c.dir.path
	return cmd, nil
}

// ping asks over HTTP, where a failure does not abort the server, and makes sure that it is this server that answers.
func (c *ClickHouse) ping(ctx context.Context) error {
	path, err := c.query(ctx, "SELECT path FROM system.disks WHERE name = 'default'")
	if err != nil {
		return err
	}
	if filepath.Clean(strings.TrimSpace(path)) != c.data() {
		return fmt.Errorf("another server answers on port %d", c.httpPort)
	}
	return nil
}

// query runs one statement over HTTP and returns the answer as tab-separated text.
func (c *ClickHouse) query(ctx context.Context, sql string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+loopback(c.httpPort)+"/", strings.NewReader(sql))
	if err != nil {
		return "", err
	}
	request.SetBasicAuth(clickhouseUser, c.password)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ClickHouse answered %s: %s", response.Status, strings.TrimSpace(string(answer)))
	}
	return string(answer), nil
}

func (c *ClickHouse) dsn(database string) string {
	dsn := url.URL{Scheme: "clickhouse", User: url.UserPassword(clickhouseUser, c.password), Host: loopback(c.port), Path: "/" + database}
	return dsn.String()
}

// DSN is the URL of the database "default", password included. Passwords are new at each Start, not at Restart.
func (c *ClickHouse) DSN() string { return c.dsn("default") }

// Port is the port of the native protocol.
func (c *ClickHouse) Port() int { return c.port }

// HTTPPort is the port of ClickHouse's HTTP interface.
func (c *ClickHouse) HTTPPort() int { return c.httpPort }

// CreateDatabase makes a database unless it is there and returns its URL.
func (c *ClickHouse) CreateDatabase(ctx context.Context, name string) (string, error) {
	if _, err := c.query(ctx, "CREATE DATABASE IF NOT EXISTS "+quoteIdentifier(name)); err != nil {
		return "", fmt.Errorf("create the database %s: %w", name, err)
	}
	return c.dsn(name), nil
}

// DropDatabase removes a database.
func (c *ClickHouse) DropDatabase(ctx context.Context, name string) error {
	if _, err := c.query(ctx, "DROP DATABASE IF EXISTS "+quoteIdentifier(name)+" SYNC"); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

func quoteIdentifier(name string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(name) + "`"
}
