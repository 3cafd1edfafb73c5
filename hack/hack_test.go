// Package hack_test tries the scripts that every other test trusts.
package hack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs a script and returns its output and exit code.
func run(t *testing.T, dir string, env []string, name string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGotest holds the promise of `make test`: nothing is skipped, hidden or green without a test.
func TestGotest(t *testing.T) {
	const head = "package a\nimport \"testing\"\n"
	for _, test := range []struct {
		name, source string
		args         []string
		code         int
		want         []string
		not          string
	}{
		{
			name: "pass", source: head + `func TestA(t *testing.T) { t.Log("quiet"); t.Run("b", func(*testing.T) {}) }`,
			want: []string{"ok  \tx/a\t", "The 1 slowest tests:", "x/a.TestA\n", "2 passed, 0 failed, 0 skipped"}, not: "quiet",
		},
		{
			name: "fail", source: head + `func TestA(t *testing.T) { t.Errorf("f(1) = 2, want 3") }`, code: 1,
			want: []string{"--- FAIL: TestA (", "a_test.go:3: f(1) = 2, want 3\n", "FAIL\tx/a\t", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name: "panic", source: head + `func TestA(t *testing.T) { panic("boom") }`, code: 1,
			want: []string{"panic: boom", "FAIL\tx/a\t"},
		},
		{
			name: "build", source: head + `func TestA(t *testing.T) { undefined() }`, code: 1,
			want: []string{"undefined: undefined", "FAIL\tx/a [build failed]"},
		},
		{
			name: "skip", source: head + `func TestA(t *testing.T) { t.Skip("no Redis") }; func TestB(t *testing.T) {}`, code: 1,
			want: []string{"Skipped, which fails the run:\n  x/a.TestA: ", "no Redis", "1 passed, 0 failed, 1 skipped"},
		},
		{
			name: "skip in a subtest", source: head + `func TestA(t *testing.T) { t.Run("b", func(t *testing.T) { t.SkipNow() }) }`, code: 1,
			want: []string{"x/a.TestA/b: "},
		},
		{
			name: "skip allowed", source: head + `func TestA(t *testing.T) { t.Skip("long") }; func TestB(t *testing.T) {}`,
			args: []string{"--allow-skips"},
			want: []string{"Skipped:\n  x/a.TestA: ", "1 passed, 0 failed, 1 skipped"},
		},
		{
			name: "no test", source: "package a\n", code: 1,
			want: []string{"no test ran"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"go.mod": "module x\n\ngo 1.26.0\n", "a/a_test.go": test.source})
			stdout, stderr, code := run(t, dir, []string{"GOFLAGS="}, script(t, "gotest"), append(test.args, "./...")...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if test.not != "" && strings.Contains(stdout, test.not) {
				t.Errorf("the output has %q, which go test does not show", test.not)
			}
			if t.Failed() {
				t.Logf("stdout:\n%s\nstderr:\n%s", stdout, stderr)
			}
		})
	}
}

// TestPartsSaysWhatToDo gives hack/parts no way to get anything: it must end in one message that helps.
func TestPartsSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("parts")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"hack/parts": string(text), "hack/parts.tsv": "# nothing\n", "own/envoy": "#!/bin/sh\n"})
	parts := filepath.Join(dir, "hack", "parts")
	// Whatever this machine has on PATH must not count, so only Python itself is started, by its own path.
	python, _, _ := run(t, dir, nil, "python3", "-c", "import sys; print(sys.executable, end='')")
	bare := []string{"PATH=" + filepath.Join(dir, "empty"), "ENVOY_BIN=", "REDIS_BIN=", "HOME="}

	stdout, stderr, code := run(t, dir, bare, python, parts, "print", "envoy")
	if code != 1 || stdout != "" {
		t.Errorf("without any way: exit code %d, stdout %q, want 1 and nothing", code, stdout)
	}
	for _, want := range []string{"envoy is needed", "why:", "no package is pinned", "ways to provide it", "ENVOY_BIN=", "make parts"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("the message lacks %q:\n%s", want, stderr)
		}
	}

	own := filepath.Join(dir, "own", "envoy")
	stdout, stderr, code = run(t, dir, append(bare, "ENVOY_BIN="+own), python, parts, "print", "envoy")
	if code != 0 || stdout != own+"\n" {
		t.Errorf("by ENVOY_BIN: %q, exit code %d, want its path\n%s", stdout, code, stderr)
	}
	onPath := append(bare, "PATH="+filepath.Dir(own))
	if stdout, _, code = run(t, dir, onPath, python, parts, "print", "envoy"); code != 0 || stdout != own+"\n" {
		t.Errorf("by PATH: %q, exit code %d, want its path", stdout, code)
	}
	_, stderr, code = run(t, dir, append(bare, "ENVOY_BIN=/nowhere/envoy"), python, parts, "print", "envoy")
	if code != 1 || !strings.Contains(stderr, "ENVOY_BIN=/nowhere/envoy") {
		t.Errorf("a wrong ENVOY_BIN: exit code %d, %q, want 1 and the variable named", code, stderr)
	}
}
