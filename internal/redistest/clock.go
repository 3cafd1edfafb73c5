package redistest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/weir-rl/weir/internal/parts"
)

//go:embed clock/clock.c
var clockSource []byte

// clockSize is the size of the shared file: the offset in milliseconds, then the instant at which the clock stands in
// microseconds, 0 while it runs.
const clockSize = 16

// clock is what the preloaded clock.c makes of one server's wall clock, shared through a mapped file.
type clock struct {
	file    string
	mapping []byte
}

func newClock(dir string) (*clock, error) {
	path := filepath.Join(dir, "clock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("clock file: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(clockSize); err != nil {
		return nil, fmt.Errorf("clock file: %w", err)
	}
	mapping, err := syscall.Mmap(int(file.Fd()), 0, clockSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map clock file: %w", err)
	}
	return &clock{file: path, mapping: mapping}, nil
}

// words are the shared integers. A mapping starts at a page, so they are aligned for atomic stores, which the server
// sees whole and at once.
func (c *clock) words() *[2]int64 { return (*[2]int64)(unsafe.Pointer(unsafe.SliceData(c.mapping))) }

func (c *clock) set(d time.Duration) {
	atomic.StoreInt64(&c.words()[0], d.Milliseconds())
	atomic.StoreInt64(&c.words()[1], 0)
}

func (c *clock) stop(at time.Time) { atomic.StoreInt64(&c.words()[1], at.UnixMicro()) }

func (c *clock) close() error { return syscall.Munmap(c.mapping) }

// clockLibrary returns the path of clock.c's shared library, compiled once per version of its source.
func clockLibrary() (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(clockSource)
	library := filepath.Join(root, ".cache", "clock", "clock-"+hex.EncodeToString(sum[:8])+".so")
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", errors.New("moving a server's clock needs a C compiler: none on PATH as cc (Debian: apt-get install gcc libc6-dev)")
	}
	if err := os.MkdirAll(filepath.Dir(library), 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(library), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	source, built := filepath.Join(scratch, "clock.c"), filepath.Join(scratch, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command(cc, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", built, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile clock.c: %w:\n%s", err, out)
	}
	// Test binaries compile at the same time; a rename never shows another one half a library.
	return library, os.Rename(built, library)
}
