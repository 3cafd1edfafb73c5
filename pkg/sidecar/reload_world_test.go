package sidecar_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/sidecar"
)

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never came about: %s", what)
		}
	}
}

// logged is a log that many goroutines write and a test reads.
type logged struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// world is a sidecar whose policy files a test changes.
type world struct {
	*running
	t        *testing.T
	dir      string // of the policy files
	registry *prometheus.Registry
	log      *logged
}

// reloading starts a sidecar on what prepare writes into a directory; it
// watches path in it, "" for the directory itself.
func reloading(t *testing.T, path string, prepare func(dir string), more ...func(*sidecar.Options, *sidecar.Sidecar)) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "policies"), registry: prometheus.NewRegistry(), log: &logged{}}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	prepare(w.dir)
	c := config(t, "")
	c.Policy.Paths = []string{filepath.Join(w.dir, path)}
	c.Policy.Poll = 0
	opts := sidecar.Options{Config: c, Registry: w.registry, Logger: slog.New(slog.NewTextHandler(w.log, nil))}
	for _, m := range more {
		m(&opts, nil)
	}
	s, err := sidecar.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range more {
		m(&opts, s)
	}
	w.running = runIt(t, s)
	// Watching begins beside serving.
	eventually(t, "the first look", func() bool {
		return w.metric("weir_policy_watched") == 1 || w.log.count("cannot be watched") > 0
	})
	t.Cleanup(func() {
		if err := w.end(t); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return w
}

// write replaces a file by renaming, so that no slow machine shows it empty.
func (w *world) write(name, text string) {
	w.t.Helper()
	oneFile(".new", text)(w.dir)
	w.rename(filepath.Join(w.dir, ".new"), filepath.Join(w.dir, name))
}

func (w *world) rename(from, to string) {
	w.t.Helper()
	if err := os.Rename(from, to); err != nil {
		w.t.Fatal(err)
	}
}

// metric returns the sum of a metric's series.
func (w *world) metric(name string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func (w *world) loads(n float64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%v loads", n), func() bool { return w.metric("weir_policy_loads_total") == n })
}

// failures waits for n at least: what a test does in two steps may be seen as two changes.
func (w *world) failures(n float64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%v failures", n), func() bool { return w.metric("weir_policy_load_failures_total") >= n })
}

// ask returns the answer to one request of a domain with one entry.
func (w *world) ask(domain, key, value string) string {
	w.t.Helper()
	r := request("")
	r.Domain, r.Descriptors[0].Entries = domain, []limit.Entry{{Key: key, Value: value}}
	return ask(w.t, w.Addrs().TCP, r)
}

// decides waits until the sidecar decides by a version, which allows n a year.
func (w *world) decides(version, n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("version %d decides", version), func() bool {
		return w.metric("weir_policy_version") == float64(version)
	})
	got := w.ask("api", "user", fmt.Sprintf("v%d", version))
	for _, want := range []string{fmt.Sprintf(`policy_version: "%d"`, version), fmt.Sprintf("limit %d per YEAR", n)} {
		if !strings.Contains(got, want) {
			w.t.Errorf("version %d answers without %s:\n%s", version, want, got)
		}
	}
}

// reload demands a load by admin.
func (w *world) reload() (code int, answer reloadAnswer) {
	w.t.Helper()
	resp, err := http.Post("http://"+w.Addrs().Admin+"/-/reload", "", nil) //nolint:noctx // patience bounds the test
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

type reloadAnswer struct {
	Reloaded bool
	Version  int
	Digest   string
	Faults   []struct {
		File, Code, Message, Mend string
		Line                      int
	}
}

// versioned is a policy that allows n a year.
func versioned(version, n int) string {
	return fmt.Sprintf("version: %d\ndomain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: %d}\n", version, n)
}

func oneFile(name, text string) func(string) {
	return func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
}

// mount makes a directory what the kubelet makes of a ConfigMap, or swaps its
// content as the kubelet does: the files lie in a folder of their own, ..data
// leads to it, and a rename replaces ..data.
func mount(t *testing.T, dir string, generation int, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	now := fmt.Sprintf("..2026_01_01_00_00_%02d.1", generation)
	must(os.Mkdir(filepath.Join(dir, now), 0o755))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(dir, now, name), []byte(text), 0o644))
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	must(os.Symlink(now, filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	if before != "" {
		must(os.RemoveAll(filepath.Join(dir, before)))
	}
}
