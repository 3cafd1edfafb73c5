package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/envoytest"
	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
)

// waitAnswered waits until a process has answered that many requests.
func (i *instance) waitAnswered(t *testing.T, n float64) {
	t.Helper()
	err := parts.Poll(t.Context(), patience, func() error {
		if got := i.sum(t, "weir_rls_requests_total"); got < n {
			return fmt.Errorf("the sidecar at %s has answered %v requests, want %v", i.rls, got, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A sidecar is replaced by another process while requests come in: none fails, and the limit holds to the last unit
// across both.
func TestReplacedUnderLoad(t *testing.T) {
	long(t)
	const requests, each, admitted = 10_000, 1_000, 6_000
	redis := redistest.Start(t, redistest.WithClock())
	redis.StopClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)) // The window does not turn over meanwhile.
	policy, err := routes.policyPath()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := parts.MkdirTemp("weir-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := "--rls.unix.path=" + filepath.Join(dir, "rls.sock")
	old := startInstance(t, append(fleetArgs(redis, policy), socket)...)
	_, port, _ := strings.Cut(old.rls, ":")
	envoy := envoytest.Start(t, envoytest.Config{
		File: routes.envoy, Dir: dir, Concurrency: 2, Timeout: filterTimeout,
		Replace: []string{"TCP_PORT", port, "MANY_RULES_64", "", "MANY_RULES_80", ""},
	})

	load := startHTTPLoad(t, envoy, requests)
	old.waitAnswered(t, each)
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	// The same limits as a later version, by which the access log tells who answered.
	successor := startInstance(t, append(fleetArgs(redis, writePolicy(t, "version: 2\n"+string(text))), socket, "--rls.take_over")...)
	old.terminate(t)
	if err := old.ended(t); err != nil {
		t.Errorf("the old process: %v, want exit code 0", err)
	}
	successor.waitAnswered(t, each)
	load.finish()

	sent, ok, over := load.sent.Load(), load.ok.Load(), load.over.Load()
	if load.other.Load() != 0 || sent < requests {
		t.Errorf("of %d requests %d were answered neither 200 nor 429 (as %v), want none of at least %d",
			sent, load.other.Load(), load.first.Load(), requests)
	}
	envoy.WaitStat(t, "cluster.app.ratelimit.closed.ok", ok)
	envoy.WaitStat(t, "cluster.app.ratelimit.closed.over_limit", over)
	if got := envoy.Stat(t, "cluster.app.ratelimit.closed.error"); got != 0 {
		t.Errorf("Envoy counts %d errors, want none", got)
	}
	keys, _ := redis.MustDo(t, "KEYS", "weir:1:{*").([]any)
	if len(keys) != 1 {
		t.Fatalf("Redis holds %q, want one key", keys)
	}
	if state := stored(t, redis, keys[0].(string)); ok != admitted || state.Used != admitted {
		t.Errorf("admitted %d, and Redis has counted %d; want %d", ok, state.Used, admitted)
	}
	by := map[any]uint64{}
	for _, line := range envoy.WaitAccessLog(t, int(sent)) {
		limiter, _ := line["limiter"].(map[string]any)
		by[limiter["policy_version"]]++
	}
	answered := uint64(successor.sum(t, "weir_rls_requests_total"))
	if by["0"] < each || by["2"] < each || by["0"]+by["2"] != sent || by["2"] != answered {
		t.Errorf("of %d requests the access log gives %v to the versions; want at least %d to each, and to the second the %d that its sidecar counts",
			sent, by, each, answered)
	}
	t.Logf("%d requests, answered by version %v", sent, by)
}

// `sidecar key` prints the key that Redis holds, for a sidecar with a secret, a prefix and tenants.
func TestKeyCommand(t *testing.T) {
	redis := redistest.Start(t)
	policy, err := routes.policyPath()
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of this test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(fleetArgs(redis, policy), "--store.secret_file="+secret, "--store.key_prefix=team:")
	i := startInstance(t, args...)
	for _, descriptor := range []string{"tenant=atlas", `raw=a\xffb`, "plan=gold,user=ann,action=write"} {
		request := []string{"--domain=e2e", "--descriptor=" + descriptor}
		answer := command(t, append([]string{"call", "--addr=" + i.rls, "--timeout=" + patience.String()}, request...)...)
		if !strings.HasPrefix(answer, "overall: OK\n") {
			t.Errorf("call %s: %s", descriptor, answer)
		}
		key, _, _ := strings.Cut(command(t, append(append([]string{"key"}, args...), request...)...), "\t")
		if used := stored(t, redis, key).Used; used != 1 || !strings.HasPrefix(key, "team:weir:1:{") {
			t.Errorf("the key of %s is %s, which has counted %d; Redis holds %v", descriptor, key, used, redis.MustDo(t, "KEYS", "*"))
		}
	}
}

// command runs a command of the sidecar and returns what it prints.
func command(t *testing.T, args ...string) string {
	t.Helper()
	binary, err := sidecarBinary()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // The race detector's runtime sleeps at every exit.
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sidecar %q: %v\n%s", args, err, stderr.String())
	}
	return string(out)
}
