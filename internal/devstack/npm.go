package devstack

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// npmPackage is a package that ships a program; integrity is npm's own checksum of the very file that was tried out.
type npmPackage struct{ spec, integrity string }

// unpack downloads the package and extracts the files that want accepts (paths without the leading "package/") into dir.
func (p npmPackage) unpack(ctx context.Context, dir string, want func(path string) bool) error {
	// No scripts run: npm pack only downloads.
	if err := npmTool().run(ctx, dir, "pack", "--silent", "--pack-destination", dir, p.spec); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil {
		return fmt.Errorf("look for what npm downloaded: %w", err)
	}
	if len(archives) != 1 {
		return fmt.Errorf("npm pack %s left %d archives in %s, not 1", p.spec, len(archives), dir)
	}
	if err := p.verify(archives[0]); err != nil {
		return err
	}
	if err := extract(archives[0], dir, want); err != nil {
		return fmt.Errorf("unpack %s: %w", p.spec, err)
	}
	return os.Remove(archives[0])
}

func (p npmPackage) verify(archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("check the download: %w", err)
	}
	sum := sha512.New()
	_, err = io.Copy(sum, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("check the download: %w", err)
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum.Sum(nil)); got != p.integrity {
		return fmt.Errorf("%s has checksum %s, not the expected %s: the registry serves another file than the one this program was "+
			"tried with", p.spec, got, p.integrity)
	}
	return nil
}

// extract unpacks the regular files of a .tgz.
func extract(archive, dir string, want func(path string) bool) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close() // opened for reading: nothing to lose
	}()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	entries := tar.NewReader(unzipped)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, path, _ := strings.Cut(header.Name, "/")
		if header.Typeflag != tar.TypeReg || !filepath.IsLocal(path) || !want(path) {
			continue
		}
		if err := writeFile(filepath.Join(dir, path), entries, header.FileInfo().Mode().Perm()|0o444); err != nil {
			return err
		}
	}
}

func writeFile(path string, from io.Reader, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}
