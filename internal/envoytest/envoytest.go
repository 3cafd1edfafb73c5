// Package envoytest runs a real Envoy for tests and for the demo, from the configs that we ship.
//
// It assumes that Envoy can be found or fetched (package parts); otherwise the test fails and says how to get it, it
// never skips. Every Envoy gets a folder and free ports of its own: Render puts them in place of the literal ones of
// the files under envoy/. An Envoy ends with its test, and at the latest with the test binary. What it counts and
// logs appears after the answer: wait with parts.Poll, WaitStat and WaitAccessLog, never for a length of time. Envoys
// are safe for concurrent use.
package envoytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/parts"
)

const (
	// startLimit bounds start and stop. A start takes about 150 ms; two loaded cores make it more.
	startLimit = 30 * time.Second
	// adminLimit bounds one question to the admin page, so that a paused Envoy fails a test instead of hanging it.
	adminLimit = 10 * time.Second
	// defaultTimeout is how long Envoy waits for the rate-limit service, unless a test is about that: long enough
	// that two loaded cores and the race detector do not turn an answer into an error.
	defaultTimeout = time.Second
)

// Config says which Envoy to run. One of File and Text is needed.
type Config struct {
	// File is a config, relative to the root of the repository, as envoy/northstar.yaml.
	File string
	// Text is a config itself.
	Text string
	// Dir takes the place of /tmp/weir: sockets, access log, Envoy's own log. Its path is part of the sockets', so
	// keep it under 80 bytes. Empty: a temporary one, removed at the end.
	Dir string
	// Port and AdminPort take the places of 10000 and 9901; 0 lets the system choose free ones.
	Port, AdminPort int
	// Timeout takes the place of the filters' 0.05s; 0 means one second.
	Timeout time.Duration
	// Replace changes more of the text: old, new, old, new ... An old that does not occur is an error, since the
	// test would otherwise not be about what it says.
	Replace []string
	// Concurrency is the number of workers; 0 means 1, which has one connection to the rate-limit service.
	Concurrency int
	// Args are further arguments of Envoy, as "--component-log-level", "filter:trace".
	Args []string
	// Outlive lets Envoy live on when this process ends.
	Outlive bool
}

// Envoy is a running Envoy.
type Envoy struct {
	dir       string
	ownDir    bool
	process   *parts.Process
	admin     string
	listeners map[string]string
}

// Start runs an Envoy until the end of the test. If the test fails, the ends of its logs are shown.
func Start(tb testing.TB, c Config) *Envoy {
	tb.Helper()
	e, err := Launch(c)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("envoytest: end of Envoy's log:\n%s", tail(e.Log(), 60))
			tb.Logf("envoytest: end of the access log:\n%s", tail(readText(e.accessLogPath()), 30))
		}
		if err := e.Close(); err != nil {
			tb.Errorf("envoytest: %v", err)
		}
	})
	return e
}

// Launch runs an Envoy until Close. It is Start for callers without a test; it returns once all listeners are bound.
func Launch(c Config) (*Envoy, error) {
	binary, err := parts.Find(parts.Envoy)
	if err != nil {
		return nil, err
	}
	e := &Envoy{dir: c.Dir}
	if e.dir == "" {
		if e.dir, err = parts.MkdirTemp("weir-envoy-"); err != nil {
			return nil, err
		}
		e.ownDir = true
	}
	if err := e.launch(binary, c); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; end of its log:\n%s", err, tail(e.Log(), 30)), e.Close())
	}
	return e, nil
}

func (e *Envoy) launch(binary string, c Config) error {
	path, err := c.write(e.dir)
	if err != nil {
		return err
	}
	log, err := os.Create(e.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	admin := filepath.Join(e.dir, "admin.txt")
	if err := os.Remove(admin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	e.process, err = parts.Start(parts.Command{
		Path: binary,
		Args: append([]string{
			"-c", path,
			"--concurrency", strconv.Itoa(max(c.Concurrency, 1)),
			"--disable-hot-restart", // Otherwise two Envoys of one machine meet in shared memory.
			"--admin-address-path", admin,
			"--file-flush-interval-msec", "50", // The default of 10 s would make every look at the access log wait.
			"--drain-time-s", "1",
			"--log-level", "warning",
		}, c.Args...),
		Output:  log,
		Outlive: c.Outlive,
	})
	if err != nil {
		return err
	}
	return e.waitReady(admin)
}

// waitReady waits until Envoy says that it is live and has bound every listener, and remembers their addresses.
func (e *Envoy) waitReady(adminPath string) error {
	err := parts.Poll(context.Background(), startLimit, func() error {
		if e.process.Ended() {
			return parts.Final(fmt.Errorf("envoy ended while starting: %w", e.process.Err()))
		}
		address, err := os.ReadFile(adminPath)
		if err != nil {
			return err
		}
		e.admin = strings.TrimSpace(string(address))
		if _, err := e.ask("/ready"); err != nil {
			return err
		}
		e.listeners, err = e.askListeners()
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for envoy: %w", err)
	}
	return nil
}

func (e *Envoy) askListeners() (map[string]string, error) {
	text, err := e.ask("/listeners?format=json")
	if err != nil {
		return nil, err
	}
	var page struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
				Pipe struct {
					Path string `json:"path"`
				} `json:"pipe"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, fmt.Errorf("admin page /listeners: %w", err)
	}
	if len(page.Statuses) == 0 {
		return nil, errors.New("admin page /listeners: none yet")
	}
	listeners := map[string]string{}
	for _, l := range page.Statuses {
		switch {
		case l.Local.Pipe.Path != "":
			listeners[l.Name] = l.Local.Pipe.Path
		case l.Local.Socket.Port != 0:
			listeners[l.Name] = net.JoinHostPort(l.Local.Socket.Address, strconv.Itoa(l.Local.Socket.Port))
		default:
			return nil, fmt.Errorf("listener %s: not bound yet", l.Name)
		}
	}
	return listeners, nil
}

// Close ends Envoy and removes a folder that Launch made.
func (e *Envoy) Close() error {
	var err error
	if e.process != nil {
		err = e.process.Stop(startLimit)
	}
	if e.ownDir {
		err = errors.Join(err, os.RemoveAll(e.dir))
	}
	return err
}

// Dir returns the folder that stands for /tmp/weir.
func (e *Envoy) Dir() string { return e.dir }

// Path returns a path in that folder, as Path("rls.sock"), where the shipped configs expect the sidecar.
func (e *Envoy) Path(name string) string { return filepath.Join(e.dir, name) }

// PID returns the process id.
func (e *Envoy) PID() int { return e.process.PID() }

// Admin returns the address of the admin page, host:port.
func (e *Envoy) Admin() string { return e.admin }

// Addr returns the address of a listener by its name: host:port, or the path of a Unix socket.
func (e *Envoy) Addr(listener string) string {
	addr, ok := e.listeners[listener]
	if !ok {
		panic(fmt.Sprintf("envoytest: no listener %q; there are %v", listener, e.listeners))
	}
	return addr
}

// ask gets a page of the admin listener; anything but 200 is an error.
func (e *Envoy) ask(page string) ([]byte, error) {
	client := http.Client{Timeout: adminLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + e.admin + page)
	if err != nil {
		return nil, fmt.Errorf("admin page: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("admin page %s: %w", page, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("admin page %s: %s: %s", page, response.Status, bytes.TrimSpace(text))
	}
	return text, nil
}

// Stat returns a counter or gauge by its full name. Envoy creates many of them on first use, so an absent one is 0.
func (e *Envoy) Stat(tb testing.TB, name string) uint64 {
	tb.Helper()
	value, err := e.stat(name)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	return value
}

func (e *Envoy) stat(name string) (uint64, error) {
	text, err := e.ask("/stats?filter=" + url.QueryEscape("^"+regexp.QuoteMeta(name)+"$"))
	if err != nil {
		return 0, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return 0, nil
	}
	_, value, ok := strings.Cut(strings.TrimSpace(string(text)), name+": ")
	if !ok {
		return 0, fmt.Errorf("stat %s: unexpected answer %q", name, text)
	}
	return strconv.ParseUint(value, 10, 64)
}

// WaitStat waits until a counter or gauge has a value, and fails the test when it does not come to it.
func (e *Envoy) WaitStat(tb testing.TB, name string, want uint64) {
	tb.Helper()
	err := parts.Poll(tb.Context(), adminLimit, func() error {
		got, err := e.stat(name)
		if err == nil && got != want {
			err = fmt.Errorf("%s = %d, want %d", name, got, want)
		}
		return err
	})
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
}

// AccessLog returns the lines of access.log that were written so far.
func (e *Envoy) AccessLog(tb testing.TB) []map[string]any {
	tb.Helper()
	lines, err := e.accessLog()
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	return lines
}

// WaitAccessLog waits until access.log has at least n lines and returns all of them.
func (e *Envoy) WaitAccessLog(tb testing.TB, n int) []map[string]any {
	tb.Helper()
	var lines []map[string]any
	err := parts.Poll(tb.Context(), adminLimit, func() error {
		var err error
		lines, err = e.accessLog()
		if err == nil && len(lines) < n {
			err = fmt.Errorf("access log has %d lines, want %d", len(lines), n)
		}
		return err
	})
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	return lines
}

func (e *Envoy) accessLog() ([]map[string]any, error) {
	text, err := os.ReadFile(e.accessLogPath())
	if err != nil {
		return nil, err
	}
	var lines []map[string]any
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // Still being written.
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return nil, fmt.Errorf("access log line %q: %w", line, err)
		}
		lines = append(lines, fields)
	}
	return lines, nil
}

// Log returns what Envoy itself has logged.
func (e *Envoy) Log() string { return readText(e.logPath()) }

func (e *Envoy) logPath() string       { return e.Path("envoy.log") }
func (e *Envoy) accessLogPath() string { return e.Path("access.log") }

func readText(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func tail(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// Validate asks Envoy itself whether it takes a config, and returns what it says against it.
func Validate(tb testing.TB, c Config) error {
	tb.Helper()
	binary, err := parts.Find(parts.Envoy)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	dir := c.Dir
	if dir == "" {
		dir = tb.TempDir() // Validation opens the access log but binds nothing, so long paths do no harm.
	}
	path, err := c.write(dir)
	if err != nil {
		tb.Fatalf("envoytest: %v", err)
	}
	out, err := exec.Command(binary, append([]string{"--mode", "validate", "-c", path, "--log-level", "warning"}, c.Args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("envoy --mode validate: %w:\n%s", err, out)
	}
	return nil
}
