package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// raced says whether this binary looks for data races; the sidecars that it starts then do so too.
var raced = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
})

// sidecarBinary builds cmd/sidecar, which takes no time when nothing has changed since the last run.
var sidecarBinary = sync.OnceValues(func() (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	path, args := filepath.Join(root, ".cache", "e2e", "sidecar"), []string{"build"}
	if raced() {
		path += "-race"
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "-o", path, "./cmd/sidecar")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return path, nil
})

// long leaves a test of processes under load out of a short run.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes 5 to 15 seconds")
	}
}

// node is where a sidecar listens, be it a process of its own or a part of this one.
type node struct {
	rls string // host:port or unix:///path
	ops string // host:port
}

// instance is a sidecar process.
type instance struct {
	node
	process *parts.Process
	log     string // path of its log
	killed  bool   // by the test, so that its end is no fault
}

// fleetArgs are the flags of a sidecar on a Redis; those of more stand instead of the ones of the same names. The
// budget is as long as can be: no answer of these tests depends on how busy the machine is.
func fleetArgs(redis *redistest.Server, policy string, more ...string) []string {
	args := slices.Clone(more)
	for _, flag := range []string{
		"--policy.paths=" + policy,
		"--store.type=redis", "--store.url=" + redis.URL(),
		"--decision.budget=10s",
		"--rls.tcp=127.0.0.1:0", "--ops.address=127.0.0.1:0", "--admin.address=",
		"--drain.delay=0s",
	} {
		name, _, _ := strings.Cut(flag, "=")
		if !slices.ContainsFunc(more, func(m string) bool { return strings.HasPrefix(m, name+"=") }) {
			args = append(args, flag)
		}
	}
	return args
}

// writePolicy writes a policy file.
func writePolicy(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startInstance starts a sidecar process and waits until it serves. It ends with the test, and must end well.
func startInstance(t *testing.T, args ...string) *instance {
	t.Helper()
	i, err := launchInstance(t, args...)
	if err != nil {
		t.Fatalf("%v\nits log:\n%s", err, readLog(i.log))
	}
	return i
}

// launchInstance is startInstance for a sidecar that may refuse to start.
func launchInstance(t *testing.T, args ...string) (*instance, error) {
	t.Helper()
	binary, err := sidecarBinary()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	i := &instance{log: log.Name()}
	i.process, err = parts.Start(parts.Command{
		Path:   binary,
		Args:   append([]string{"serve", "--log.format=json"}, args...),
		Env:    []string{"GORACE=atexit_sleep_ms=0"},
		Output: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.check(t) })
	return i, parts.Poll(t.Context(), patience, func() error {
		if i.process.Ended() {
			i.killed = true // It never served: the caller has the error.
			return parts.Final(fmt.Errorf("the sidecar ended while starting: %w", i.process.Err()))
		}
		return i.readAddresses()
	})
}

// readAddresses takes them from the line that says that the sidecar serves.
func (i *instance) readAddresses() error {
	for line := range strings.Lines(readLog(i.log)) {
		var serving struct {
			Msg string `json:"msg"`
			TCP string `json:"rls_tcp"`
			UDS string `json:"rls_unix"`
			Ops string `json:"ops"`
		}
		if json.Unmarshal([]byte(line), &serving) == nil && serving.Msg == "serving" {
			i.rls, i.ops = serving.TCP, serving.Ops
			if i.rls == "" {
				i.rls = "unix://" + serving.UDS
			}
			return nil
		}
	}
	return errors.New("the sidecar does not serve yet")
}

// check ends the process, if it still runs, and looks at how it ended and at what it logged.
func (i *instance) check(t *testing.T) {
	if err := i.process.Stop(patience); err != nil {
		t.Error(err)
	}
	if err := i.process.Err(); err != nil && !i.killed {
		t.Errorf("the sidecar at %s ended with %v", i.rls, err)
	}
	log := readLog(i.log)
	if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") || t.Failed() {
		t.Errorf("log of the sidecar at %s:\n%s", i.rls, log)
	}
}

// kill ends the process as a crash does.
func (i *instance) kill(t *testing.T) {
	t.Helper()
	i.killed = true
	if err := i.process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// terminate sends SIGTERM and does not wait.
func (i *instance) terminate(t *testing.T) {
	t.Helper()
	if err := i.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// ended waits until the process has ended.
func (i *instance) ended(t *testing.T) error {
	t.Helper()
	select {
	case <-i.process.Done():
		return i.process.Err()
	case <-time.After(patience):
		t.Fatalf("the sidecar at %s does not end", i.rls)
		return nil
	}
}

func readLog(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// get asks the ops listener.
func (n node) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + n.ops + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// sum adds the series of a metric that have all the labels, written as they are scraped: name="value".
func (n node) sum(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	_, page := n.get(t, "/metrics")
	total := 0.0
lines:
	for scan := bufio.NewScanner(strings.NewReader(page)); scan.Scan(); {
		series, value, _ := strings.Cut(scan.Text(), " ")
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(series, label) {
				continue lines
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("scraped %q: %v", scan.Text(), err)
		}
		total += v
	}
	return total
}

// sumOver adds a metric over nodes.
func sumOver(t *testing.T, nodes []node, name string, labels ...string) (total float64) {
	t.Helper()
	for _, n := range nodes {
		total += n.sum(t, name, labels...)
	}
	return total
}

// storeKeys asks the key command where the budgets of descriptors are kept.
func storeKeys(t *testing.T, policy string, descriptors ...string) []string {
	t.Helper()
	args := []string{"key", "--policy.paths=" + policy, "--domain=fleet"}
	for _, d := range descriptors {
		args = append(args, "--descriptor="+d)
	}
	out := command(t, args...)
	var keys []string
	for line := range strings.Lines(out) {
		key, _, _ := strings.Cut(line, "\t")
		keys = append(keys, key)
	}
	if len(keys) != len(descriptors) {
		t.Fatalf("sidecar key printed %q for %d descriptors", out, len(descriptors))
	}
	return keys
}

// stored returns the state under a key; the zero State when there is none.
func stored(t *testing.T, redis *redistest.Server, key string) limit.State {
	t.Helper()
	value, ok := redis.MustDo(t, "GET", key).(string)
	if !ok {
		return limit.State{}
	}
	state, form := limit.DecodeState([]byte(value))
	if form != limit.Known {
		t.Fatalf("key %s holds %q, which is %v", key, value, form)
	}
	return state
}
