package doctest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/parts"
)

// runLimit bounds one fence. The first one builds the program and the demo, which may take a minute on two loaded
// cores; it only ends what hangs.
const runLimit = 3 * time.Minute

// TestFencedCommandsRun runs every fence marked sh run, all of them in one copy of the tree and in the order of the
// docs, and compares what they print with the text that follows.
func TestFencedCommandsRun(t *testing.T) {
	root, docs, _ := repository(t)
	copied := copyTree(t, root)
	for _, d := range docs {
		var stdout string
		for _, f := range d.Fences() {
			switch {
			case f.Is("sh run"):
				var err error
				stdout, err = runFence(t, copied, f.Body, runLimit)
				if err != nil {
					t.Errorf("%s:%d: %v", f.Path, f.Line, err)
				}
			case f.Is("text output"):
				if !sameOutput(f.Body, stdout) {
					t.Errorf("%s:%d: the commands above print\n%s\nwhere the document says\n%s", f.Path, f.Line, stdout, f.Body)
				}
			}
		}
	}
}

// copyTree copies what is not made by the Makefile into .cache/docs, which is always the same folder, because Go builds
// a package anew when it lies elsewhere. A lock keeps a second test out of it.
func copyTree(t *testing.T, root string) string {
	t.Helper()
	dir := filepath.Join(root, ".cache", "docs")
	if len(dir) > longestCopy {
		dir = shortFolder(t)
	} else if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	err = filepath.WalkDir(root, func(from string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, from)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, rel)
		switch {
		case rel == ".git" && !e.IsDir():
			return nil
		case rel == ".git" || rel == ".cache" || rel == "bin" || rel == "run":
			return filepath.SkipDir
		case e.IsDir():
			return os.MkdirAll(to, 0o755)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// longestCopy leaves room for the name of a socket in the copy.
const longestCopy = 80

// shortFolder is for a repository whose own path is too long.
func shortFolder(t *testing.T) string {
	t.Helper()
	base, err := parts.MkdirTemp("weir-docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	return filepath.Join(base, "tree")
}

// runFence runs commands as one script that ends with the first that fails, and returns what it printed. When it has
// ended, so has everything that it left behind.
func runFence(t *testing.T, dir, script string, limit time.Duration) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Dir, cmd.Env = dir, environment(t)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("not ended after %s: %w", limit, err)
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, out.String(), complaints.String())
	}
	return out.String(), err
}

// environment is that of the test, without what a make around it says to the makes below it, and with the parts that
// the tree has already. The copy is in no repository of its own, so no commit goes into what it builds.
func environment(t *testing.T) []string {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "MAKE") || name == "MFLAGS" || name == "KEEP" || name == "ENVOY" || strings.HasPrefix(name, "WEIR_")
	})
	envoy, err := parts.Find(parts.Envoy)
	if err != nil {
		t.Fatal(err)
	}
	return append(env, "ENVOY_BIN="+envoy, "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false")
}

var digits = regexp.MustCompile(`[0-9]+`)

// sameOutput compares what a document says with what was printed. Numbers may differ; … stands for anything in its
// line, and alone in its line for any lines.
func sameOutput(said, printed string) bool {
	var pattern strings.Builder
	pattern.WriteString("^")
	for line := range strings.Lines(strings.Trim(said, "\n") + "\n") {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString("(?:.*\n)*")
			continue
		}
		text := regexp.QuoteMeta(strings.TrimRight(line, "\n"))
		text = digits.ReplaceAllString(text, "[0-9]+")
		pattern.WriteString(strings.ReplaceAll(text, "…", ".*") + "\n")
	}
	pattern.WriteString("$")
	return regexp.MustCompile(pattern.String()).MatchString(strings.Trim(printed, "\n") + "\n")
}

func TestFailingCommandsAreFound(t *testing.T) {
	dir := t.TempDir()
	for script, want := range map[string]string{
		"false; true":                       "exit status 1",
		"echo to the log >&2; no-such-tool": "to the log",
		"make nothing":                      "No rule",
		"echo $UNSET":                       "UNSET",
	} {
		if _, err := runFence(t, dir, script, runLimit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", script, err, want)
		}
	}
	if _, err := runFence(t, dir, "sleep 60 & wait", 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "not ended") {
		t.Errorf("a command that hangs: %v, want it ended", err)
	}
	// What is left behind ends with its fence.
	out, err := runFence(t, dir, "sleep 60 >/dev/null 2>&1 & echo $!", runLimit)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	err = parts.Poll(t.Context(), runLimit, func() error {
		// A killed process that nobody has waited for yet still has its number.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return errors.New("still running")
		}
		return nil
	})
	if err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
}

func TestOtherOutputIsFound(t *testing.T) {
	printed := "one 1\ntwo /tmp/x-22/y\n\nthree\nfour 4ms\n"
	for said, want := range map[string]bool{
		"one 12\ntwo /tmp/…/y\n\nthree\nfour 400ms\n": true,
		"one 1\n…\nfour 4ms\n":                        true,
		"…\nfour 4ms\n":                               true,
		"one 1\n":                                     false,
		"one 1\n…\nfive 4ms\n":                        false,
		"one 1\n…\nfour 4 ms\n":                       false,
		"one x\n…\n":                                  false,
		"four 4ms\n":                                  false,
	} {
		if got := sameOutput(said, printed); got != want {
			t.Errorf("sameOutput(%q) = %t, want %t", said, got, want)
		}
	}
}
