//go:build !(linux && amd64 && !nochdb)

package devstack

import (
	"fmt"
	"runtime"
)

// ClickHouseAvailable says in words why this build cannot start ClickHouse, before anything is downloaded or deleted for it.
func ClickHouseAvailable() error {
	return fmt.Errorf("this build for %s/%s has no local ClickHouse: it exists for linux/amd64, built without -tags nochdb (the container image is "+
		"built with it). Use such a build, or a server of your own and clickhouse.dsn", runtime.GOOS, runtime.GOARCH)
}

func serveClickHouse(clickhouseSpec) error { return ClickHouseAvailable() }
