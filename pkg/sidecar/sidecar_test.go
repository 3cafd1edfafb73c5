package sidecar_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
	"github.com/weir-rl/weir/pkg/sidecar"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// go-redis looks once a second whether a store is back, and notices
		// only then that its pool was closed: longer than goleak waits.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patience ends a test that would hang; nothing is decided by it.
const patience = 30 * time.Second

// Limits of a year do not turn over while a test runs, but for one second in
// the year.
const twoAYear = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
`

// config is a sidecar in memory on free ports.
func config(t *testing.T, policyFile string) sidecar.Config {
	t.Helper()
	// Not t.TempDir, whose name is too long for a socket's.
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	c := sidecar.Defaults()
	c.RLS.TCP, c.RLS.Unix.Path = "127.0.0.1:0", filepath.Join(dir, "rls.sock")
	c.Ops.Address, c.Admin.Address = "127.0.0.1:0", "127.0.0.1:0"
	c.Policy.Paths = []string{file}
	c.Store.Type = sidecar.StoreMemory
	c.Decision.Budget = patience // so that a slow machine fails no test
	return c
}

// running is a sidecar whose Run was called.
type running struct {
	*sidecar.Sidecar
	stop  context.CancelFunc
	ended chan error
}

func run(t *testing.T, opts sidecar.Options) *running {
	t.Helper()
	s, err := sidecar.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return runIt(t, s)
}

func runIt(t *testing.T, s *sidecar.Sidecar) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Sidecar: s, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-s.Started():
	case err := <-r.ended:
		t.Fatalf("Run() = %v before it started", err)
	case <-time.After(patience):
		t.Fatal("not started")
	}
	return r
}

// end stops the sidecar, if it was not, and returns what Run returned.
func (r *running) end(t *testing.T) error {
	t.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		t.Fatal("Run did not return")
		return nil
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // patience bounds the test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func request(user string) *pipeline.Request {
	return &pipeline.Request{Domain: "api", Descriptors: []pipeline.Descriptor{
		{Entries: []limit.Entry{{Key: "user", Value: user}}},
	}}
}

// ask returns the text of an answer.
func ask(t *testing.T, target string, r *pipeline.Request) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := rls.Call(ctx, target, r)
	if err != nil {
		t.Fatal(err)
	}
	return a.Text()
}

func call(t *testing.T, target, user string) *rls.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := rls.Call(ctx, target, request(user))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestServesOnBothListeners(t *testing.T) {
	r := run(t, sidecar.Options{Config: config(t, twoAYear)})
	a := r.Addrs()
	for i, want := range []pipeline.Code{pipeline.OK, pipeline.OK, pipeline.OverLimit} {
		target := a.TCP
		if i%2 == 0 {
			target = "unix://" + a.Unix
		}
		if got := call(t, target, "ann"); got.Code() != want {
			t.Errorf("call %d: code %d, want %d:\n%s", i, got.Code(), want, got.Text())
		}
	}
	if got := call(t, a.TCP, "bob"); got.Code() != pipeline.OK {
		t.Errorf("another user: %s", got.Text())
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if _, err := os.Stat(a.Unix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestOps(t *testing.T) {
	r := run(t, sidecar.Options{Config: config(t, twoAYear), Build: sidecar.Build{Version: "v9", Revision: "abc"}})
	ops := "http://" + r.Addrs().Ops
	for path, want := range map[string]string{
		"/healthz": "ok\n",
		"/readyz":  "ready\n",
		"/metrics": `weir_build_info{goversion=`,
	} {
		if code, body := get(t, ops+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s = %d %.200q, want 200 and %q", path, code, body, want)
		}
	}
	if code, _ := get(t, ops+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("the ops listener serves pprof: %d", code)
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestAdmin(t *testing.T) {
	c := config(t, strings.Replace(twoAYear, "{", "{name: P-READ, ", 1))
	settings, _ := sidecar.Load(sidecar.Inputs{Environ: []string{"WEIR_LOG_LEVEL=warn"}})
	c.Store.URL = "redis://user:hunter2@h:1/0"
	when := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	r := run(t, sidecar.Options{Config: c, Origin: settings.Origin, Now: func() time.Time { return when }})
	admin := "http://" + r.Addrs().Admin

	var shown []struct{ Name, Value, Origin string }
	_, body := get(t, admin+"/config")
	if err := json.Unmarshal([]byte(body), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown) != len(sidecar.Table()) {
		t.Errorf("/config shows %d settings, want %d", len(shown), len(sidecar.Table()))
	}
	for _, s := range shown {
		want := "default"
		if s.Name == "log.level" {
			want = "WEIR_LOG_LEVEL"
		}
		if s.Origin != want {
			t.Errorf("/config says that %s came from %q, want %q", s.Name, s.Origin, want)
		}
	}
	if strings.Contains(body, "hunter2") || !strings.Contains(body, "redis://user:xxxxx@h:1/0") {
		t.Errorf("/config shows the password, or not the URL: %s", body)
	}

	_, body = get(t, admin+"/policy")
	for _, want := range []string{`"loaded": "2030-01-02T03:04:05Z"`, `"rule": "P-READ"`, `"label": "user"`, `"limit": 2`, `"domains": 1`, `"count": 1`} {
		if !strings.Contains(body, want) {
			t.Errorf("/policy lacks %s: %s", want, body)
		}
	}
	if code, body := get(t, admin+"/debug/pprof/goroutine?debug=1"); code != http.StatusOK || !strings.Contains(body, "goroutine profile") {
		t.Errorf("no goroutine profile: %d", code)
	}
	if _, body := get(t, admin+"/debug/pprof/cmdline"); body != "sidecar" {
		t.Errorf("pprof shows the command line, which may hold a password: %q", body)
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// A store that cannot be reached stops no start, and makes the sidecar no less
// ready: the rule's failure mode answers.
func TestStartsWithoutRedis(t *testing.T) {
	c := config(t, twoAYear)
	c.Store.Type, c.Store.URL = sidecar.StoreRedis, "unix://"+filepath.Join(filepath.Dir(c.RLS.Unix.Path), "none.sock")
	c.PolicyDefaults.OnStoreFailure = limit.ModeClosed
	registry := prometheus.NewRegistry()
	r := run(t, sidecar.Options{Config: c, Registry: registry})
	if code, body := get(t, "http://"+r.Addrs().Ops+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d %q, want 200", code, body)
	}
	got := call(t, r.Addrs().TCP, "ann")
	if got.Code() != pipeline.OverLimit || !strings.Contains(got.Text(), "unavailable") {
		t.Errorf("want a denial as unavailable:\n%s", got.Text())
	}
	lint(t, registry)
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}

	// The other form is an error, which this Envoy takes for what its filter says.
	c.RLS.UnavailableAs = sidecar.UnavailableAsError
	r = run(t, sidecar.Options{Config: c})
	_, err := rls.Call(t.Context(), r.Addrs().TCP, request("ann"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("with grpc_error: %v, want UNAVAILABLE", err)
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestMetricsAreNamedWell(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := run(t, sidecar.Options{Config: config(t, twoAYear), Registry: registry})
	call(t, r.Addrs().TCP, "ann")
	lint(t, registry)
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func lint(t *testing.T, g prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(g)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
}

// At a SIGTERM the sidecar says that it is not ready, goes on answering as
// long as Envoy is connected, and ends when Envoy has gone.
func TestDrainsUntilEnvoyHasGone(t *testing.T) {
	c := config(t, twoAYear)
	c.Drain.Delay, c.Drain.Timeout = patience, 2*patience
	r := run(t, sidecar.Options{Config: c})
	a := r.Addrs()
	conn, err := grpc.NewClient("passthrough:///"+a.TCP, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health := func() healthpb.HealthCheckResponse_ServingStatus {
		resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	if got := health(); got != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health is %s", got)
	}
	r.stop()
	for deadline := time.Now().Add(patience); ; {
		code, body := get(t, "http://"+a.Ops+"/readyz")
		if code == http.StatusServiceUnavailable {
			if body != "not ready: draining\n" {
				t.Errorf("/readyz says %q", body)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still ready")
		}
	}
	if got := health(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %s while it drains", got)
	}
	if got := call(t, a.TCP, "ann"); got.Code() != pipeline.OK {
		t.Errorf("not answered while it drains:\n%s", got.Text())
	}
	select {
	case err := <-r.ended:
		t.Fatalf("ended before Envoy had gone: %v", err)
	default:
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// An Envoy that stays connected cannot hold the sidecar beyond the delay.
func TestDrainDelayEnds(t *testing.T) {
	c := config(t, twoAYear)
	c.Drain.Delay = time.Millisecond
	r := run(t, sidecar.Options{Config: c})
	conn, err := grpc.NewClient("passthrough:///"+r.Addrs().TCP, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestAddressInUse(t *testing.T) {
	for name, set := range map[string]func(*sidecar.Config, string){
		"ops":   func(c *sidecar.Config, a string) { c.Ops.Address = a },
		"admin": func(c *sidecar.Config, a string) { c.Admin.Address = a },
		"tcp":   func(c *sidecar.Config, a string) { c.RLS.TCP = a },
	} {
		t.Run(name, func(t *testing.T) {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			c := config(t, twoAYear)
			set(&c, taken.Addr().String())
			s, err := sidecar.New(sidecar.Options{Config: c})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Run(t.Context())
			if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), name) {
				t.Errorf("Run() = %v, want an address in use, and its setting", err)
			}
		})
	}
}

func TestNewListsEveryFault(t *testing.T) {
	c := config(t, "domain: api\ndescriptors:\n  - key: a\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n  - kez: b\n")
	c.Store.Type = ""
	c.Store.SecretFile = "/nowhere"
	_, err := sidecar.New(sidecar.Options{Config: c})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"store.type: required", "store.secret_file: ", ":4:", "fortnight", ":5:", "kez"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, lacks %q", err, want)
		}
	}
}

func TestOffListeners(t *testing.T) {
	c := config(t, twoAYear)
	c.RLS.TCP, c.Ops.Address, c.Admin.Address = "", "", ""
	r := run(t, sidecar.Options{Config: c})
	if a := r.Addrs(); a != (sidecar.Addrs{Unix: c.RLS.Unix.Path}) {
		t.Errorf("listens at %+v", a)
	}
	if got := call(t, "unix://"+c.RLS.Unix.Path, "ann"); got.Code() != pipeline.OK {
		t.Error(got.Text())
	}
	if err := r.end(t); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// The admin listener is for who is on the machine. A page whose name resolves
// to 127.0.0.1 is not, though the browser that shows it is.
func TestAdminAnswersLoopbackNamesOnly(t *testing.T) {
	r := run(t, sidecar.Options{Config: config(t, twoAYear)})
	for host, want := range map[string]int{
		"127.0.0.1:9091": http.StatusOK, "localhost": http.StatusOK, "[::1]:9091": http.StatusOK, "127.9.9.9": http.StatusOK,
		"evil.example": http.StatusForbidden, "evil.example:9091": http.StatusForbidden, "192.0.2.1": http.StatusForbidden,
		"localhost.evil.example": http.StatusForbidden,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Addrs().Admin+"/config", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("GET /config of host %s = %d, want %d", host, res.StatusCode, want)
		}
	}
}

// Whoever is told to stop while it starts has not failed.
func TestStoppedWhileStarting(t *testing.T) {
	s, err := sidecar.New(sidecar.Options{Config: config(t, twoAYear)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run() = %v", err)
	}
}
