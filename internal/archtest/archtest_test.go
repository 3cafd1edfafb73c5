package archtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/archtest"
	"github.com/weir-rl/weir/internal/parts"
)

const module = "github.com/weir-rl/weir/"

func TestImports(t *testing.T) {
	packages := list(t)
	if len(packages) < 50 {
		t.Fatalf("go list -deps gave %d packages, too few to be this module's", len(packages))
	}
	for _, breach := range archtest.CheckImports(packages) {
		t.Error(breach)
	}
}

func list(t *testing.T) []archtest.Package {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,Imports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []archtest.Package
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p archtest.Package
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// TestImportRulesCanFail gives each rule a package that breaks it.
func TestImportRulesCanFail(t *testing.T) {
	for _, test := range []struct {
		name, imports string
		want          string // Part of the breach; empty: allowed.
	}{
		{"pkg/pipeline", "pkg/policy", ""},
		{"pkg/policy", "pkg/pipeline", "imports point down"},
		{"pkg/limit", "pkg/policy", "imports point down"},
		{"pkg/negcache", "pkg/lease", "imports point down"},
		{"pkg/pipeline", "pkg/authority", "imports point down"},
		{"pkg/rls", "pkg/authority", "imports point down"},
		{"pkg/pipeline", "pkg/rls", "imports point down"},
		{"pkg/rls", "pkg/sidecar", "imports point down"},
		{"pkg/sidecar", "pkg/rls", ""},
		{"cmd/sidecar", "pkg/sidecar", ""},
		{"pkg/sidecar", "internal/redistest", "internal/ is for tests"},
		{"internal/redistest", "internal/parts", ""},
		{"internal/redistest", "pkg/limit", "must not depend on what is tested"},
		{"pkg/helpers", "pkg/limit", "not in mayImport"},

		{"pkg/rls", "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3", ""},
		{"pkg/sidecar", "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3", "end at pkg/rls"},
		{"cmd/sidecar", "google.golang.org/protobuf/encoding/protojson", "end at pkg/rls"},
		{"pkg/pipeline", "google.golang.org/grpc/codes", "gRPC is how"},
		{"pkg/authority", "github.com/redis/go-redis/v9", ""},
		{"pkg/fallback", "github.com/redis/go-redis/v9", "only pkg/authority knows Redis"},
		{"cmd/sidecar", "github.com/redis/go-redis/v9", "only pkg/authority knows Redis"},
		{"pkg/policy", "go.yaml.in/yaml/v3", ""},
		{"pkg/rls", "go.yaml.in/yaml/v3", "YAML ends"},
		{"pkg/pipeline", "sigs.k8s.io/yaml", "YAML ends"},
		{"pkg/sidecar", "github.com/alecthomas/kong", "flags end"},
		{"pkg/policy", "github.com/fsnotify/fsnotify", "reloading is wiring"},
		{"pkg/authority", "github.com/sony/gobreaker/v2", "the breaker"},
		{"pkg/memory", "github.com/hashicorp/golang-lru/v2", "bounded tables"},
		{"pkg/limit", "github.com/prometheus/client_golang/prometheus", "may count"},
		{"pkg/policy", "golang.org/x/sync/errgroup", "standard library only"},
		{"pkg/limit", "github.com/google/go-cmp/cmp", "needs a reason"},
		{"pkg/rls", "github.com/envoyproxyfake/x", "needs a reason"},
		{"internal/redistest", "github.com/google/go-cmp/cmp", ""},

		{"pkg/pipeline", "net/netip", ""},
		{"pkg/rls", "net/http", "by the wiring"},
		{"pkg/pipeline", "os", "not on the machine"},
		{"pkg/limit", "os/exec", "not on the machine"},
	} {
		own := strings.HasPrefix(test.imports, "pkg/") || strings.HasPrefix(test.imports, "internal/")
		imported := test.imports
		if own {
			imported = module + imported
		}
		standard := !own && !strings.Contains(strings.SplitN(imported, "/", 2)[0], ".")
		breaches := archtest.CheckImports([]archtest.Package{
			{ImportPath: module + test.name, Imports: []string{imported}},
			{ImportPath: imported, Standard: standard},
		})
		// The imported package of this module is judged too, but imports nothing here.
		got := strings.Join(breaches, "\n")
		if test.want == "" && got != "" || test.want != "" && (len(breaches) != 1 || !strings.Contains(got, test.want)) {
			t.Errorf("%s imports %s: breaches %q, want %q", test.name, test.imports, got, test.want)
		}
	}
}

func TestClock(t *testing.T) {
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, dir := range []string{"pkg", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files++
			breaches, err := archtest.CheckClock(filepath.ToSlash(name), source)
			for _, breach := range breaches {
				t.Error(breach)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 20 {
		t.Fatalf("looked at %d files, too few to be this module's", files)
	}
}

// TestClockRuleCanFail gives the rule the ways in which code reads the clock, and those in which it does not.
func TestClockRuleCanFail(t *testing.T) {
	for _, test := range []struct {
		file, body string
		want       string
	}{
		{"pkg/limit/a.go", `import "time"; var x = time.Now()`, "a.go:1 reads time.Now"},
		{"pkg/limit/a.go", `import "time"; var now = time.Now`, "reads time.Now"},
		{"pkg/limit/a.go", `import "time"; func f(t time.Time) time.Duration { return time.Since(t) }`, "reads time.Since"},
		{"pkg/limit/a.go", `import "time"; func f(t time.Time) time.Duration { return time.Until(t) }`, "reads time.Until"},
		{"pkg/limit/a.go", `import clock "time"; var x = clock.Now()`, "reads time.Now"},
		{"pkg/limit/a.go", `import . "time"; var x = Now()`, "hides the clock"},
		{"pkg/authority/new.go", `import "time"; var x = time.Now()`, "reads time.Now"},
		{"pkg/limit/a.go", `import "time"; var x = time.Second`, ""},
		{"pkg/limit/a.go", `type clock struct{ Now func() int }; func f(time clock) int { return time.Now() }`, ""},
		{"pkg/limit/a_test.go", `import "time"; var x = time.Now()`, ""},
		{"pkg/authority/flight.go", `import "time"; var x = time.Now()`, ""},
		{"pkg/sidecar/serve.go", `import "time"; var x = time.Now()`, ""},
		{"cmd/sidecar/main.go", `import "time"; var x = time.Now()`, ""},
	} {
		breaches, err := archtest.CheckClock(test.file, []byte("package p; "+test.body))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(breaches, "\n")
		if test.want == "" && got != "" || test.want != "" && (len(breaches) != 1 || !strings.Contains(got, test.want)) {
			t.Errorf("%s: %s: breaches %q, want %q", test.file, test.body, got, test.want)
		}
	}
}
