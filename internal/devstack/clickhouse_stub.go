//go:build !(linux && amd64 && !nochdb)

package devstack

import "errors"

// serveClickHouse needs the engine's library, which this build leaves out.
func serveClickHouse(clickhouseSpec) error {
	return errors.New("this build has no local ClickHouse: it exists for linux/amd64, built without the tag nochdb")
}
