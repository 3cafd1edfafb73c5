package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/internal/envoytest"
	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
)

// world is an Envoy, the sidecar beside it and the Redis behind that.
type world struct {
	*weir
	envoy *envoytest.Envoy
	redis *redistest.Server
	dir   string
	now   time.Time // of the store, while its clock stands
}

// plan says what a world is made of; file names are relative to the root of the repository.
type plan struct {
	name, envoy, policy string
	timeout             time.Duration // of Envoy's filter
	replace             func(*weir) []string
}

var (
	// northstar is what we ship.
	northstar = plan{name: "northstar", envoy: "envoy/northstar.yaml", policy: "config/northstar", timeout: filterTimeout}

	// routes has a route for each behaviour.
	routes = plan{
		name: "e2e", envoy: "e2e/testdata/envoy.yaml", policy: "e2e/testdata/policy.yaml", timeout: filterTimeout,
		replace: func(w *weir) []string {
			_, port, _ := strings.Cut(w.Addrs().TCP, ":")
			const rule = "{actions: [{request_headers: {header_name: x-raw, descriptor_key: big}}]},"
			return []string{
				"TCP_PORT", port,
				"MANY_RULES_64", strings.Repeat(rule, 64),
				"MANY_RULES_80", strings.Repeat(rule, 80),
			}
		},
	}

	// large is routes again, for messages of megabytes.
	large = plan{name: "large", envoy: routes.envoy, policy: routes.policy, timeout: largeTimeout, replace: routes.replace}
)

// policyPath is where the policy is, wherever the test runs.
func (p plan) policyPath() (string, error) {
	root, err := parts.Root()
	return filepath.Join(root, filepath.FromSlash(p.policy)), err
}

// build starts a world on this Redis.
func (p plan) build(redis *redistest.Server, budget time.Duration) (_ *world, err error) {
	w := &world{redis: redis}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	policy, err := p.policyPath()
	if err != nil {
		return nil, err
	}
	if w.dir, err = parts.MkdirTemp("weir-e2e-"); err != nil {
		return nil, err
	}
	c := settings(redis.URL(), p.name, filepath.Join(w.dir, "rls.sock"), policy)
	c.Decision.Budget = budget
	if w.weir, err = startWeir(c); err != nil {
		return nil, err
	}
	config := envoytest.Config{File: p.envoy, Dir: w.dir, Timeout: p.timeout}
	if p.replace != nil {
		config.Replace = p.replace(w.weir)
	}
	w.envoy, err = envoytest.Launch(config)
	return w, err
}

func (w *world) close() error {
	var errs []error
	if w.envoy != nil {
		errs = append(errs, w.envoy.Close())
	}
	if w.weir != nil {
		errs = append(errs, w.weir.close())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// worlds are those that tests share, by the names of their plans.
var worlds struct {
	mu  sync.Mutex
	all map[string]*world
}

func closeWorlds() error {
	worlds.mu.Lock()
	defer worlds.mu.Unlock()
	var errs []error
	for _, w := range worlds.all {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// days counts the days of the store's clock that tests have taken.
var days atomic.Int64

// start returns the shared world of a plan, on a day of its own: the clock stands 20.25 seconds after noon, where no
// window of a minute or more begins or ends.
func (p plan) start(t *testing.T) *world {
	t.Helper()
	worlds.mu.Lock()
	defer worlds.mu.Unlock()
	w := worlds.all[p.name]
	if w == nil {
		var err error
		if w, err = p.build(redistest.Shared(t), budget); err != nil {
			t.Fatal(err)
		}
		if worlds.all == nil {
			worlds.all = map[string]*world{}
		}
		worlds.all[p.name] = w
	}
	w.watch(t)
	w.now = time.Date(2030, 1, 1, 12, 0, 20, 250e6, time.UTC).AddDate(0, 0, int(days.Add(1)))
	w.redis.StopClock(w.now)
	return w
}

// alone returns a world that no other test sees, on a Redis of its own that the test may stop; its clock runs.
func (p plan) alone(t *testing.T) *world {
	t.Helper()
	w, err := p.build(redistest.Start(t), shortBudget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	w.watch(t)
	return w
}

// watch shows Envoy's log when the test fails.
func (w *world) watch(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			log := w.envoy.Log()
			t.Logf("end of Envoy's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
}

// advance moves the store's clock, which then stands again.
func (w *world) advance(d time.Duration) {
	w.now = w.now.Add(d)
	w.redis.StopClock(w.now)
}

// name is a value that no other test uses.
func name(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", "-") }

// get sends a GET with headers, given as name, value, name, value ..., over HTTP/1.1.
func (w *world) get(t *testing.T, path string, headers ...string) envoytest.Response {
	t.Helper()
	return envoytest.HTTP1(t, w.envoy.Addr("ingress"), envoytest.Request("GET", path, "", headers...))
}

// statuses sends the same GET several times and returns the codes of the answers, as "200 200 429".
func (w *world) statuses(t *testing.T, n int, path string, headers ...string) string {
	t.Helper()
	var all []string
	for range n {
		all = append(all, fmt.Sprint(w.get(t, path, headers...).Status))
	}
	return strings.Join(all, " ")
}

// answered compares a whole answer: status, every header but those that Envoy makes for each answer alike, and body.
func answered(t *testing.T, what string, r envoytest.Response, status int, headers map[string]string, body string) {
	t.Helper()
	if r.Status != status || string(r.Body) != body {
		t.Errorf("%s: %d %s\nwant %d %s", what, r.Status, r.Body, status, body)
	}
	want := http.Header{}
	for k, v := range headers {
		want.Set(k, v)
	}
	got := r.Header.Clone()
	for _, common := range []string{"Date", "Server", "Connection", "Content-Length", "X-Envoy-Upstream-Service-Time"} {
		got.Del(common)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: headers (-want +got):\n%s", what, d)
	}
}

// tally is what both sides counted of calls.
type tally struct{ ok, over, failed uint64 }

func (a tally) less(b tally) tally { return tally{a.ok - b.ok, a.over - b.over, a.failed - b.failed} }

func (w *world) ofEnvoy(t *testing.T, filters []string) (sum tally) {
	t.Helper()
	for _, f := range filters {
		stat := func(name string) uint64 { return w.envoy.Stat(t, "cluster.app.ratelimit."+f+"."+name) }
		sum.ok += stat("ok")
		sum.over += stat("over_limit")
		sum.failed += stat("error") + stat("failure_mode_allowed")
	}
	return sum
}

func (w *world) ofWeir(t *testing.T) tally {
	t.Helper()
	code := func(c string) uint64 { return w.counter(t, "weir_rls_requests_total", "code", c) }
	return tally{code("ok"), code("over_limit"), code("error")}
}

// count returns a function that tells whether, since count was called, the calls of these filters were as many as the
// client saw, on both sides, and none failed.
func (w *world) count(t *testing.T, filters ...string) func(ok, over uint64) {
	t.Helper()
	envoy, weir := w.ofEnvoy(t, filters), w.ofWeir(t)
	return func(ok, over uint64) {
		t.Helper()
		var got tally
		want := tally{ok, over, 0}
		err := parts.Poll(t.Context(), patience, func() error {
			if got = w.ofEnvoy(t, filters).less(envoy); got.ok+got.over+got.failed < ok+over {
				return errors.New("not all calls are counted")
			}
			return nil
		})
		if err != nil || got != want {
			t.Errorf("Envoy's filters %q counted %+v (%v), want %+v as the client saw", filters, got, err, want)
		}
		if got := w.ofWeir(t).less(weir); got != want {
			t.Errorf("the sidecar counted %+v, want %+v as the client saw", got, want)
		}
	}
}

// stored returns the bytes that Redis holds for a descriptor, nil for none.
func (w *world) stored(t *testing.T, domain string, entries ...string) any {
	t.Helper()
	return w.redis.MustDo(t, "GET", w.key(t, domain, entries...))
}

// debits returns how many scripts Redis has run.
func (w *world) debits(t *testing.T) (n int) {
	t.Helper()
	text, _ := w.redis.MustDo(t, "INFO", "commandstats").(string)
	_, calls, found := strings.Cut(text, "cmdstat_evalsha:calls=")
	if !found {
		return 0
	}
	if _, err := fmt.Sscan(calls, &n); err != nil { // It ends at the comma.
		t.Fatalf("cmdstat_evalsha of %q: %v", text, err)
	}
	return n
}

// logged waits for the access log's line of the request with this x-test header.
func (w *world) logged(t *testing.T, id string) (line map[string]any) {
	t.Helper()
	err := parts.Poll(t.Context(), patience, func() error {
		for _, line = range w.envoy.AccessLog(t) {
			if line["id"] == id {
				return nil
			}
		}
		return fmt.Errorf("no line of %s", id)
	})
	if err != nil {
		t.Fatal(err)
	}
	return line
}
