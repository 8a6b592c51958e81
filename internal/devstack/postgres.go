package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	postgresUser     = "vitrina"
	postgresDatabase = "vitrina"
)

// Postgres is a PostgreSQL server with an empty database "vitrina".
type Postgres struct {
	*service
	bin      string
	as       identity
	password string
	port     int
}

// StartPostgres starts PostgreSQL and returns once it takes connections. As root the server runs as another user. Data are
// fsynced unless Settings say otherwise ("fsync": "off" makes throwaway servers quicker).
func StartPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	bin, err := postgresBin(ctx, opts)
	if err != nil {
		return nil, err
	}
	dir, err := openWorkdir(opts.Dir, "postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{service: newService("postgres", opts, dir), bin: bin}
	p.build, p.probe = p.command, p.ping
	p.stopSignal = syscall.SIGINT // fast shutdown: ends the sessions, writes a checkpoint
	p.killSignal = syscall.SIGQUIT
	p.deathSignal = syscall.SIGQUIT // a SIGKILL would leave backends and shared memory for a while
	if err := p.boot(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), p.Stop(ctx))
	}
	return p, nil
}

func (p *Postgres) boot(ctx context.Context) error {
	var err error
	p.as, err = chooseIdentity(ctx, filepath.Join(p.bin, "postgres"), p.dir.path, p.data())
	if err != nil {
		return err
	}
	if err := p.initialise(ctx); err != nil {
		return err
	}
	if err := p.awaitOrphan(ctx); err != nil {
		return err
	}
	if err := p.startAnew(ctx, func() (err error) { p.port, err = portOr(ctx, p.opts.Port); return err }); err != nil {
		return err
	}
	return p.ensureDatabase(ctx, postgresDatabase)
}

func (p *Postgres) data() string { return p.dir.join("data") }

// initialise makes the data directory, or reads the password of the one that is there.
func (p *Postgres) initialise(ctx context.Context) error {
	secret := p.dir.join("password")
	if _, err := os.Stat(p.data()); err == nil {
		password, err := os.ReadFile(secret)
		if err != nil {
			return fmt.Errorf("read the password of the existing data (remove %s to begin anew): %w", p.dir.path, err)
		}
		p.password = string(password)
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Without a password any local user could become the server's superuser, who may run programs.
	p.password = rand.Text()
	if err := os.WriteFile(secret, []byte(p.password), 0o600); err != nil {
		return err
	}
	if err := os.Chown(secret, p.as.owner, -1); err != nil {
		return fmt.Errorf("give the password file to the server's user: %w", err)
	}
	temp := p.dir.join("data.new")
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("remove what an interrupted initdb left: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "initdb"), "--pgdata="+temp, "--username="+postgresUser, "--pwfile="+secret,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	p.prepare(cmd)
	dieWithParent(cmd, syscall.SIGKILL)
	if err := runQuietly(cmd); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	return os.Rename(temp, p.data())
}

// prepare sets user, directory and environment of one of PostgreSQL's programs. PG* variables of the caller would change what
// they do.
func (p *Postgres) prepare(cmd *exec.Cmd) {
	cmd.Dir = p.dir.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	p.as.apply(cmd)
}

// awaitOrphan waits for a server on the same data whose parent was just killed: it is on its way out. A stale postmaster.pid
// whose number another process got meanwhile is removed, since PostgreSQL would refuse to start because of it. Both are safe
// because this process holds the directory's lock.
func (p *Postgres) awaitOrphan(ctx context.Context) error {
	pidFile := filepath.Join(p.data(), "postmaster.pid")
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		raw, err := os.ReadFile(pidFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for a server on the same data: %w", err)
		}
		pid, _, _ := strings.Cut(string(raw), "\n")
		at, err := os.Readlink("/proc/" + pid + "/cwd")
		if err != nil || at != p.data() {
			return os.Remove(pidFile)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the PostgreSQL of a killed process (%s) still uses %s; end it with: kill -QUIT %s", pid, p.data(), pid)
		case <-ticker.C:
		}
	}
}

func (p *Postgres) command(ctx context.Context) (*exec.Cmd, error) {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": "",
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"max_wal_size":            "2GB", // the default makes a checkpoint every few seconds under a load test
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	for name, value := range p.opts.Settings {
		settings[name] = value
	}
	args := []string{"-D", p.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "postgres"), args...)
	p.prepare(cmd)
	return cmd, nil
}

func (p *Postgres) dsn(database string) string {
	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword(postgresUser, p.password), Host: loopback(p.port), Path: "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// DSN is the URL of the database "vitrina", password included.
func (p *Postgres) DSN() string { return p.dsn(postgresDatabase) }

// Port is the server's TCP port.
func (p *Postgres) Port() int { return p.port }

// CreateDatabase makes a new empty database and returns its URL.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	err := p.admin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("create the database %s: %w", name, err)
	}
	return p.dsn(name), nil
}

// DropDatabase removes a database and ends the sessions in it.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	err := p.admin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
		return err
	})
	if err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

func (p *Postgres) ensureDatabase(ctx context.Context, name string) error {
	var there bool
	err := p.admin(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	})
	if err != nil {
		return fmt.Errorf("look for the database %s: %w", name, err)
	}
	if there {
		return nil
	}
	_, err = p.CreateDatabase(ctx, name)
	return err
}

func (p *Postgres) ping(ctx context.Context) error {
	return p.admin(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// admin runs do on a connection of its own to the database that always exists.
func (p *Postgres) admin(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, p.dsn("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(ctx))
}
