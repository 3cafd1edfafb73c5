// Command demo shows a denial by Weir from end to end: it starts bin/sidecar with the Northstar policy and a store in
// memory, a real Envoy in front of a little API, sends requests until one is over the limit, and prints what came
// back. `make demo` and `make demo-down` call it; all ports and paths are free ones.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/envoytest"
	"github.com/weir-rl/weir/internal/parts"
)

const usage = `usage: demo up|down
  KEEP=1      up leaves everything running; down ends it
  ENVOY=none  up does without Envoy and shows the denial by "sidecar call"`

func main() {
	err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	d := &demo{root: root, keep: os.Getenv("KEEP") == "1"}
	switch {
	case len(args) == 1 && args[0] == "up":
		envoy := os.Getenv("ENVOY")
		if envoy != "" && envoy != "none" {
			return fmt.Errorf("ENVOY=%s: not none; leave it out, or name a program by ENVOY_BIN", envoy)
		}
		d.withoutEnvoy = envoy == "none"
		return d.up()
	case len(args) == 1 && args[0] == "down":
		return d.down()
	}
	return errors.New(usage)
}

// startLimit is how long the sidecar may take to listen; it needs a few hundredths of a second.
const startLimit = 15 * time.Second

// stopLimit is how long a program may take to end; the sidecar first lets its callers go.
const stopLimit = 15 * time.Second

// tries bounds the burst. The limit is 20 at once and 2 more a second, so even a machine that needs a tenth of a
// second for each request meets it.
const tries = 100

// user is who calls; P-READ in config/northstar limits each user.
const user = "U-17"

type demo struct {
	root string
	keep bool

	withoutEnvoy bool

	dir     string // Sockets, logs and rendered configs of this run.
	socket  string // Where the sidecar answers Envoy.
	sidecar *parts.Process
	envoy   *envoytest.Envoy
}

func (d *demo) up() (err error) {
	if _, err := os.Stat(d.statePath()); err == nil {
		return errors.New("one is still up from before; end it with: make demo-down")
	}
	if !d.withoutEnvoy {
		// Before anything starts, so that nobody looks for the cause in the sidecar.
		if _, err := parts.Find(parts.Envoy); err != nil {
			return err
		}
	}
	if d.dir, err = parts.MkdirTemp("weir-demo-"); err != nil {
		return err
	}
	d.socket = filepath.Join(d.dir, "rls.sock")
	defer func() {
		if err != nil || !d.keep {
			err = errors.Join(err, d.end())
		}
	}()
	if err := d.startSidecar(); err != nil {
		return err
	}
	if d.withoutEnvoy {
		err = d.showByCall()
	} else {
		err = d.showByEnvoy()
	}
	if err != nil {
		return fmt.Errorf("%w\nThe sidecar's log:\n%s", err, readLog(d.sidecarLog()))
	}
	d.showHowToGoOn()
	if d.keep {
		return d.remember()
	}
	return nil
}

// settings are those of config/sidecar.yaml that must differ here: free ports, this run's folder, and no Redis.
func (d *demo) settings() string {
	return fmt.Sprintf(`rls:
  tcp: ""
  unix: {path: %q}
ops: {address: "127.0.0.1:0"}
admin: {address: ""}
policy: {paths: [%q]}
store: {type: memory}
`, d.socket, filepath.Join(d.root, "config", "northstar"))
}

func (d *demo) startSidecar() error {
	config := filepath.Join(d.dir, "sidecar.yaml")
	if err := os.WriteFile(config, []byte(d.settings()), 0o600); err != nil {
		return err
	}
	log, err := os.Create(d.sidecarLog())
	if err != nil {
		return err
	}
	defer log.Close()
	d.sidecar, err = parts.Start(parts.Command{
		Path:    d.binary(),
		Args:    []string{"serve", "--config", config},
		Output:  log,
		Outlive: d.keep,
	})
	if err != nil {
		return err
	}
	err = d.sidecar.WaitSocket(d.socket, startLimit)
	if err != nil {
		return fmt.Errorf("start the sidecar: %w\nIts log:\n%s", err, readLog(d.sidecarLog()))
	}
	fmt.Printf("sidecar   %s serve --config %s\n", d.binary(), config)
	return nil
}

func (d *demo) showByEnvoy() error {
	var err error
	d.envoy, err = envoytest.Launch(envoytest.Config{File: "envoy/northstar.yaml", Dir: d.dir, Outlive: d.keep})
	if err != nil {
		return fmt.Errorf("start Envoy: %w", err)
	}
	fmt.Printf("envoy     http://%s, admin page http://%s\n", d.envoy.Addr("ingress"), d.envoy.Admin())
	showRule()

	request := envoytest.Request("GET", "/catalog", "", "x-user-id", user)
	allowed := 0
	for range tries {
		r, err := envoytest.SendHTTP1(d.envoy.Addr("ingress"), request)
		if err != nil {
			return err
		}
		switch r.Status {
		case http.StatusOK:
			allowed++
		case http.StatusTooManyRequests:
			fmt.Printf("GET /catalog as user %s: %d times 200, then\n\n", user, allowed)
			print429(r)
			return nil
		default:
			return fmt.Errorf("GET /catalog answered %d %s, want 200 or 429", r.Status, r.Body)
		}
	}
	return fmt.Errorf("GET /catalog answered 200 for %d times in a row, want a 429 among them", tries)
}

func showRule() {
	fmt.Println("policy    config/northstar, P-READ: each user 20 at once and 2 more each second")
	fmt.Print("store     this sidecar's memory; sidecars that share budgets need a Redis\n\n")
}

func print429(r envoytest.Response) {
	fmt.Printf("  HTTP/1.1 %d %s\n", r.Status, http.StatusText(r.Status))
	var lines []string
	for name, values := range r.Header {
		for _, value := range values {
			lines = append(lines, strings.ToLower(name)+": "+value)
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println("  " + line)
	}
	fmt.Printf("\n  %s\n", strings.ReplaceAll(strings.TrimSpace(string(r.Body)), "\n", "\n  "))
}

func (d *demo) callArgs() []string {
	return []string{"call", "--addr", "unix://" + d.socket, "--domain", "northstar", "--descriptor", "user=" + user, "--hits", "1"}
}

// showByCall asks the sidecar as Envoy would. A call that is denied may end with its own exit code, so the answer's
// text decides.
func (d *demo) showByCall() error {
	showRule()
	allowed := 0
	for range tries {
		out, err := exec.Command(d.binary(), d.callArgs()...).CombinedOutput()
		if strings.Contains(string(out), "OVER_LIMIT") {
			fmt.Printf("sidecar %s: %d times OK, then\n\n%s", strings.Join(d.callArgs(), " "), allowed, out)
			return nil
		}
		if err != nil {
			return fmt.Errorf("sidecar call: %w\n%s", err, out)
		}
		allowed++
	}
	return fmt.Errorf("sidecar call answered OK for %d times in a row, want an OVER_LIMIT among them", tries)
}

// again is this demo's command line, to leave it running.
func (d *demo) again() string {
	if d.withoutEnvoy {
		return "ENVOY=none KEEP=1 make demo"
	}
	return "KEEP=1 make demo"
}

func (d *demo) showHowToGoOn() {
	if !d.keep {
		fmt.Println("\nTo go on by hand, leave it running: " + d.again())
		return
	}
	fmt.Println("\nIt is still running. Go on with:")
	if d.envoy != nil {
		ingress := d.envoy.Addr("ingress")
		fmt.Printf("  curl -i -H 'x-user-id: %s' http://%s/catalog\n", user, ingress)
		fmt.Printf("  curl -i -X POST -H 'x-tenant: atlas' http://%s/reports/export\n", ingress)
		fmt.Printf("  tail -f %s\n", d.envoy.Path("access.log"))
	}
	fmt.Printf("  bin/sidecar %s\n", strings.Join(d.callArgs(), " "))
	fmt.Printf("  tail -f %s\n", d.sidecarLog())
	fmt.Println("End it with: make demo-down")
}

func (d *demo) binary() string     { return filepath.Join(d.root, "bin", "sidecar") }
func (d *demo) sidecarLog() string { return filepath.Join(d.dir, "sidecar.log") }
func (d *demo) statePath() string  { return filepath.Join(d.root, ".cache", "demo.json") }

// end ends what runs, Envoy first, so that it asks nobody who is gone, and removes the folder.
func (d *demo) end() error {
	var err error
	if d.envoy != nil {
		err = d.envoy.Close()
	}
	if d.sidecar != nil {
		err = errors.Join(err, d.sidecar.Stop(stopLimit))
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// state is what a kept demo leaves behind for down.
type state struct {
	Dir       string
	Processes []process
}

// process is one of a kept demo's, in the order in which to end them. Executable and Started tell it from another
// process that got its number later.
type process struct {
	PID        int
	Executable string
	Started    string
}

func (d *demo) remember() error {
	s := state{Dir: d.dir}
	pids := []int{d.sidecar.PID()}
	if d.envoy != nil {
		pids = []int{d.envoy.PID(), d.sidecar.PID()}
	}
	for _, pid := range pids {
		p, err := look(pid)
		if err != nil {
			return errors.Join(err, d.end())
		}
		s.Processes = append(s.Processes, p)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return errors.Join(err, d.end())
	}
	if err := os.MkdirAll(filepath.Dir(d.statePath()), 0o755); err != nil {
		return errors.Join(err, d.end())
	}
	if err := os.WriteFile(d.statePath(), text, 0o600); err != nil {
		return errors.Join(err, d.end())
	}
	return nil
}

func (d *demo) down() error {
	text, err := os.ReadFile(d.statePath())
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("demo: none is up")
		return nil
	}
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", d.statePath(), err)
	}
	for _, p := range s.Processes {
		err = errors.Join(err, p.end())
	}
	// A process that would not end is reported once; a second down would not do better.
	return errors.Join(err, os.RemoveAll(s.Dir), os.Remove(d.statePath()))
}

func readLog(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
