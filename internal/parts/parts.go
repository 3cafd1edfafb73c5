// Package parts finds the real programs that tests and the demo run (Envoy, Redis) and holds their processes. It
// decides nothing about what they are used for: redistest and envoytest do.
//
// A program is found by its variable, then on PATH, else by hack/parts, which looks into .cache/parts and fetches
// what is missing. What cannot be had is an error that says how to get it; nothing is ever skipped. Everything here
// is safe for concurrent use.
package parts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Name is a program that hack/parts knows.
type Name string

// The programs; RedisCLI and RedisSentinel lie beside the redis-server that was found.
const (
	Envoy         Name = "envoy"
	Redis         Name = "redis"
	RedisCLI      Name = "redis-cli"
	RedisSentinel Name = "redis-sentinel"
)

// found remembers paths, since one test binary starts many servers and hack/parts is a process of its own.
var found struct {
	mu    sync.Mutex
	paths map[Name]string
}

// Find returns the absolute path of a program, fetching it when this machine has none.
func Find(name Name) (string, error) {
	found.mu.Lock()
	defer found.mu.Unlock()
	if path, ok := found.paths[name]; ok {
		return path, nil
	}
	path, err := find(name)
	if err != nil {
		return "", err
	}
	if found.paths == nil {
		found.paths = map[Name]string{}
	}
	found.paths[name] = path
	return path, nil
}

func find(name Name) (string, error) {
	// The two shortest ways need no Python; hack/parts knows them too, for the Makefile.
	own := map[Name]struct{ variable, binary string }{
		Envoy: {"ENVOY_BIN", "envoy"},
		Redis: {"REDIS_BIN", "redis-server"},
	}[name]
	if given := os.Getenv(own.variable); own.variable != "" && given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("find %s by %s=%s: %w", name, own.variable, given, err)
		}
		return filepath.Abs(path)
	}
	if own.binary != "" {
		if path, err := exec.LookPath(own.binary); err == nil {
			return filepath.Abs(path)
		}
	}
	root, err := Root()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	cmd := exec.Command(filepath.Join(root, "hack", "parts"), "print", string(name))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find %s by hack/parts (%w):\n%s", name, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Root returns the root of the repository: the nearest folder at or above the working directory that holds go.mod.
// A test runs in the folder of its package, so this also works for binaries built with -trimpath.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("root of the repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("root of the repository: no go.mod at or above the working directory")
		}
		dir = parent
	}
}

// MkdirTemp makes a folder whose path is short: a Unix socket's path must stay under 108 bytes, and the usual
// temporary folder of a test is named for the test and may be longer than that alone.
func MkdirTemp(pattern string) (string, error) {
	base := os.TempDir()
	if len(base) > 40 {
		base = "/tmp"
	}
	return os.MkdirTemp(base, pattern)
}
