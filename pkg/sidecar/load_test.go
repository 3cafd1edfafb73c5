package sidecar_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/sidecar"
)

// TestLoad reads testdata/settings/*.txtar: the inputs sidecar.yaml, environ
// (one variable a line) and flags (path value, one a line), and either
// "settings", the settings that are not defaults with their origins, or
// "faults", all of them in order.
func TestLoad(t *testing.T) {
	files, err := filepath.Glob("testdata/settings/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := sidecar.Inputs{Flags: map[string][]string{}}
			want := map[string]string{}
			for _, f := range archive.Files {
				switch f.Name {
				case "sidecar.yaml":
					in.File, in.Data = f.Name, f.Data
				case "environ":
					in.Environ = strings.Split(strings.TrimSuffix(string(f.Data), "\n"), "\n")
				case "flags":
					for line := range strings.Lines(string(f.Data)) {
						path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
						in.Flags[path] = append(in.Flags[path], value)
					}
				case "settings", "faults":
					want[f.Name] = string(f.Data)
				default:
					t.Fatalf("unknown part %s", f.Name)
				}
			}
			settings, faults := sidecar.Load(in)
			got := map[string]string{}
			var b strings.Builder
			for _, f := range faults {
				b.WriteString(f.Error() + "\n")
			}
			if b.Len() > 0 {
				got["faults"] = b.String()
			} else {
				for _, s := range sidecar.Table() {
					if o := settings.Origin(s.Path); o != "default" {
						b.WriteString(s.Path + " = " + s.Show(&settings.Config) + " (" + o + ")\n")
					}
				}
				got["settings"] = b.String()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				if *update {
					rewrite(t, file, archive, got)
					return
				}
				t.Error(diff)
			}
		})
	}
}

func rewrite(t *testing.T, file string, archive *txtar.Archive, got map[string]string) {
	t.Helper()
	var kept []txtar.File
	for _, f := range archive.Files {
		if f.Name != "settings" && f.Name != "faults" {
			kept = append(kept, f)
		}
	}
	for name, data := range got {
		kept = append(kept, txtar.File{Name: name, Data: []byte(data)})
	}
	archive.Files = kept
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDefaultsLackOnlyWhatHasNone(t *testing.T) {
	c := sidecar.Defaults()
	var missing []string
	for _, f := range c.Check() {
		missing = append(missing, f.Path)
	}
	if diff := cmp.Diff([]string{"policy.paths", "store.type"}, missing); diff != "" {
		t.Error(diff)
	}
}

func TestEveryDefaultRoundTrips(t *testing.T) {
	c := sidecar.Defaults()
	for _, s := range sidecar.Table() {
		if got := s.Show(&c); got != s.Default {
			t.Errorf("default of %s shows as %q, want %q", s.Path, got, s.Default)
		}
	}
}

func TestLoadSetsTheConfig(t *testing.T) {
	settings, faults := sidecar.Load(sidecar.Inputs{File: "sidecar.yaml", Data: []byte(`
rls: {tcp: "", unix: {path: /run/x.sock, mode: 0600}, take_over: true, max_recv_msg_size: 1MiB, unavailable_as: grpc_error}
ops: {address: ":0"}
admin: {address: "[::1]:0"}
policy: {paths: [a, b], merge_domains: true, allow_empty: true, poll: 1m}
policy_defaults: {overdraw: off, on_store_failure: open}
store: {type: redis, url: "redis://u:p@h:1/2", namespace: n, secret_file: s, tenant_entry: t, key_prefix: "p:", queue_calls: 99, dial_timeout: 20ms}
memory: {max_entries: 7}
decision: {budget: 5ms}
drain: {delay: 1s, timeout: 2s}
log: {level: debug, format: json}
metrics: {values_per_rule: 3}
`)})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	want := sidecar.Config{
		RLS: sidecar.RLSConfig{
			Unix: sidecar.UnixConfig{Path: "/run/x.sock", Mode: 0o600}, TakeOver: true, MaxRecvMsgSize: 1 << 20,
			UnavailableAs: sidecar.UnavailableAsError,
		},
		Ops:            sidecar.HTTPConfig{Address: ":0"},
		Admin:          sidecar.HTTPConfig{Address: "[::1]:0"},
		Policy:         sidecar.PolicyConfig{Paths: []string{"a", "b"}, MergeDomains: true, AllowEmpty: true, Poll: time.Minute},
		PolicyDefaults: sidecar.PolicyDefaults{Overdraw: limit.OverdrawOff, OnStoreFailure: limit.ModeOpen},
		Store: sidecar.StoreConfig{
			Type: "redis", URL: "redis://u:p@h:1/2", Namespace: "n", SecretFile: "s", TenantEntry: "t", KeyPrefix: "p:",
			QueueCalls: 99, DialTimeout: 20 * time.Millisecond,
		},
		Memory:   sidecar.MemoryConfig{MaxEntries: 7},
		Decision: sidecar.DecisionConfig{Budget: 5 * time.Millisecond},
		Drain:    sidecar.DrainConfig{Delay: time.Second, Timeout: 2 * time.Second},
		Log:      sidecar.LogConfig{Level: "debug", Format: "json"},
		Metrics:  sidecar.MetricsConfig{ValuesPerRule: 3},
	}
	if diff := cmp.Diff(want, settings.Config); diff != "" {
		t.Error(diff)
	}
}

// FuzzLoad holds the loader to an answer for every file: settings or faults
// with a place, never a panic, and never a password in a fault.
func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/settings/*.txtar")
	for _, file := range files {
		if archive, err := txtar.ParseFile(file); err == nil {
			for _, part := range archive.Files {
				f.Add(part.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, faults := sidecar.Load(sidecar.Inputs{File: "sidecar.yaml", Data: data})
		for _, fault := range faults {
			if fault.Problem == "" {
				t.Errorf("a fault without a problem: %+v", fault)
			}
		}
		if len(faults) == 0 && settings.Config.Store.Type == "" {
			t.Error("no fault, and no store")
		}
	})
}
