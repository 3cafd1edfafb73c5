package policy_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/policy"
)

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(dir string, files []*policy.File) []string {
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimPrefix(f.Name, dir+"/"))
	}
	return out
}

// TestLoadPathsOrder: a directory brings every file below it, in the order of
// their relative paths, but none that begins with a dot.
func TestLoadPathsOrder(t *testing.T) {
	dir := writeTree(t, map[string]string{
		"b.yaml": "domain: b", "a/z.yml": "domain: z", "a.yaml": "domain: a", "c/d/e.txt": "domain: e",
		"noext": "domain: n", ".hidden.yaml": "domain: h", ".git/x.yaml": "domain: g",
	})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"a.yaml", "a/z.yml", "b.yaml", "c/d/e.txt", "noext"}
	if diff := cmp.Diff(want, names(dir, policy.LoadPaths([]string{dir}))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	want = []string{"b.yaml", "a/z.yml", ".hidden.yaml"}
	got := policy.LoadPaths([]string{filepath.Join(dir, "b.yaml"), filepath.Join(dir, "a"), filepath.Join(dir, ".hidden.yaml")})
	if diff := cmp.Diff(want, names(dir, got)); diff != "" {
		t.Errorf("files of paths (-want +got):\n%s", diff)
	}
}

// TestLoadPathsConfigMap: Kubernetes mounts a ConfigMap as links into a hidden
// directory, which it replaces by renaming a link. Each file counts once.
func TestLoadPathsConfigMap(t *testing.T) {
	dir := writeTree(t, map[string]string{"..2026_01/a.yaml": "domain: a", "..2026_01/sub/b.yaml": "domain: b"})
	for link, to := range map[string]string{"..data": "..2026_01", "a.yaml": "..data/a.yaml", "sub": "..data/sub"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	set, faults := policy.Load([]string{dir}, policy.Options{})
	if set == nil || set.Domain("a") == nil || set.Domain("b") == nil || len(set.Domains()) != 2 {
		t.Errorf("Load = %v, %v", set, faults)
	}
}

// TestLoadPathsFaults: what cannot be read is a fault beside those of the rest.
func TestLoadPathsFaults(t *testing.T) {
	dir := writeTree(t, map[string]string{"bad.yaml": "descriptors: []", "sub/x.yaml": "domain: x"})
	for link, to := range map[string]string{"dangling": "nowhere", "sub/up": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	set, faults := policy.Load([]string{filepath.Join(dir, "missing"), dir}, policy.Options{})
	if set != nil {
		t.Error("a set with unreadable files exists")
	}
	var got []string
	for _, f := range faults.Of(policy.SeverityError) {
		got = append(got, strings.TrimPrefix(f.File, dir+"/")+" "+string(f.Code)+" "+f.Message)
		if (f.Line < 1) != (f.Code == policy.CodeUnreadable) || f.Mend == "" {
			t.Errorf("fault without a mend, or a line of a file that cannot be read: %+v", f)
		}
	}
	want := []string{
		"missing unreadable stat: no such file or directory",
		"bad.yaml empty_domain config file cannot have empty domain",
		"dangling unreadable stat: no such file or directory",
		"sub/up unreadable a symbolic link to a directory that it lies in",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if f := policy.LoadFile(filepath.Join(dir, "missing")); f.Faults().Err() == nil {
		t.Error("LoadFile of a missing file has no fault")
	}
}

// TestDigest: the digest changes with names, contents and order, and with
// nothing else.
func TestDigest(t *testing.T) {
	a, b := policy.Parse("a", []byte("domain: a")), policy.Parse("b", []byte("domain: b"))
	compile := func(files ...*policy.File) [32]byte {
		set, faults := policy.Compile(files, policy.Options{})
		if set == nil {
			t.Fatal(faults.Err())
		}
		return set.Digest()
	}
	if compile(a, b) != compile(policy.Parse("a", []byte("domain: a")), b) {
		t.Error("the same files have two digests")
	}
	for _, other := range [][]*policy.File{{b, a}, {a}, {a, policy.Parse("b", []byte("domain: c"))}, {a, policy.Parse("c", []byte("domain: b"))}} {
		if compile(a, b) == compile(other...) {
			t.Errorf("other files have the same digest")
		}
	}
}

// TestSourcesDigest: files that were read only tell as much about a change as
// the set that is made of them, and also what cannot be read.
func TestSourcesDigest(t *testing.T) {
	dir := writeTree(t, map[string]string{"a.yaml": "domain: a", "b.yaml": "domain: b"})
	paths := []string{dir}
	set, faults := policy.Load(paths, policy.Options{})
	if set == nil {
		t.Fatal(faults)
	}
	files := policy.ReadPaths(paths)
	if files.Digest() != set.Digest() {
		t.Error("files and the set that is made of them have two digests")
	}
	seen := map[[32]byte]string{files.Digest(): "both files"}
	differs := func(what string) {
		t.Helper()
		digest := policy.ReadPaths(paths).Digest()
		if same, ok := seen[digest]; ok {
			t.Errorf("%s has the digest of %s", what, same)
		}
		seen[digest] = what
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"another content", func() error { return os.WriteFile(filepath.Join(dir, "b.yaml"), []byte("domain: c"), 0o644) }},
		{"another name", func() error { return os.Rename(filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")) }},
		{"a file less", func() error { return os.Remove(filepath.Join(dir, "c.yaml")) }},
		{"a dangling link", func() error { return os.Symlink("nowhere", filepath.Join(dir, "c.yaml")) }},
		{"no directory", func() error { return os.RemoveAll(dir) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		differs(step.what)
	}
}

// TestLoadPathsTooMany: a path such as / ends in a fault, not in a walk over
// everything.
func TestLoadPathsTooMany(t *testing.T) {
	dir := t.TempDir()
	for i := range 10_001 {
		if err := os.Mkdir(filepath.Join(dir, strconv.Itoa(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, faults := policy.Load([]string{dir}, policy.Options{AllowEmpty: true})
	if len(faults) != 1 || faults[0].Code != policy.CodeUnreadable || faults[0].File != dir {
		t.Errorf("faults = %v, want one of %s", faults, dir)
	}
}

// TestMends: mends that depend on where a file was found and on its bytes.
func TestMends(t *testing.T) {
	const dot = "every file below a policy directory is one; begin its name with a dot to leave it out"
	for _, c := range []struct {
		name, data string
		named      bool
		want       string
	}{
		{"notes in a directory", "abc\n", false, dot},
		{"another program's file in a directory", "version: 3\n", false, "add 'domain: …' at the top of the file; " + dot},
		{"a policy without a domain in a directory", "descriptors: [{key: k}]\n", false, "add 'domain: …' at the top of the file"},
		{"an empty file by its name", "", true, "add 'domain: …' at the top of the file"},
		{"a tab before a list", "domain: d\ndescriptors:\n\t- key: a\n", true, "indent line 3 with spaces; YAML allows no tabs there"},
		{"a tab before a key", "domain: d\ndescriptors:\n  - key: a\n\tvalue: b\n", true, "indent line 4 with spaces; YAML allows no tabs there"},
		{"a tab at the end", "domain: d\ndescriptors: ]\t\n", true, "make it valid YAML"},
	} {
		dir := writeTree(t, map[string]string{"f": c.data})
		path := dir
		if c.named {
			path = filepath.Join(dir, "f")
		}
		_, faults := policy.Load([]string{path}, policy.Options{})
		if errs := faults.Of(policy.SeverityError); len(errs) != 1 || !strings.HasSuffix(errs[0].Mend, c.want) {
			t.Errorf("%s: faults = %v, want one with the mend %q", c.name, errs, c.want)
		}
	}
}
