package sidecar_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/pkg/sidecar"
)

func TestReloadFollowsAConfigMap(t *testing.T) {
	for name, path := range map[string]string{"the directory": "", "one file": "policy.yaml"} {
		t.Run(name, func(t *testing.T) {
			w := reloading(t, path, func(dir string) {
				mount(t, dir, 1, map[string]string{"policy.yaml": versioned(1, 11)})
			})
			w.decides(1, 11)
			for v := 2; v <= 4; v++ {
				mount(t, w.dir, v, map[string]string{"policy.yaml": versioned(v, 10+v)})
				w.decides(v, 10+v)
			}
			if got := w.metric("weir_policy_load_failures_total"); got != 0 {
				t.Errorf("%v failures of swaps that were atomic", got)
			}
		})
	}
}

// A link that is not Kubernetes' own: its target is elsewhere, and is replaced
// by renaming there; then the link itself is replaced.
func TestReloadFollowsALinkedFile(t *testing.T) {
	elsewhere := t.TempDir()
	for i, text := range []string{versioned(1, 11), versioned(2, 12), versioned(3, 13)} {
		oneFile(fmt.Sprint("policy", i+1), text)(elsewhere)
	}
	link := func(dir, target, name string) {
		if err := os.Symlink(filepath.Join(elsewhere, target), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w := reloading(t, "policy.yaml", func(dir string) { link(dir, "policy1", "policy.yaml") })
	w.decides(1, 11)
	w.rename(filepath.Join(elsewhere, "policy2"), filepath.Join(elsewhere, "policy1"))
	w.decides(2, 12)
	link(w.dir, "policy3", "next")
	w.rename(filepath.Join(w.dir, "next"), filepath.Join(w.dir, "policy.yaml"))
	w.decides(3, 13)
}

// Case B12 of the peer: a file that is dropped into the directory begins to
// decide, and its removal is another successful load. And X25, where the peer
// notices nothing: so is its being renamed out of the directory.
func TestReloadAsThePeer(t *testing.T) {
	const reload = "domain: reload\ndescriptors:\n  - key: key1\n    rate_limit: {unit: second, requests_per_unit: 50}\n  - key: block\n"
	w := reloading(t, "", oneFile("basic.yaml", "domain: basic\ndescriptors:\n  - key: key1\n    rate_limit: {unit: second, requests_per_unit: 50}\n"))
	none := func(when string) {
		t.Helper()
		got := w.ask("reload", "key1", "foo")
		if !strings.Contains(got, "overall: OK") || !strings.Contains(got, `cause: "no_rule"`) {
			t.Errorf("%s the domain is not unknown:\n%s", when, got)
		}
	}
	none("at first")
	w.write("reload.yaml", reload)
	w.loads(2)
	if got := w.ask("reload", "key1", "foo"); !strings.Contains(got, "OK, limit 50 per SECOND, remaining 49") {
		t.Errorf("after the file was dropped in:\n%s", got)
	}
	if got := w.ask("reload", "block", "foo"); !strings.Contains(got, "overall: OK") {
		t.Errorf("a descriptor without a limit:\n%s", got)
	}
	if err := os.Remove(filepath.Join(w.dir, "reload.yaml")); err != nil {
		t.Fatal(err)
	}
	w.loads(3)
	none("after the file was removed")

	outside := filepath.Join(t.TempDir(), "reload.yaml")
	oneFile("reload.yaml", reload)(filepath.Dir(outside))
	w.rename(outside, filepath.Join(w.dir, "reload.yaml"))
	w.loads(4)
	if got := w.ask("reload", "key1", "bar"); !strings.Contains(got, "remaining 49") {
		t.Errorf("after the file was renamed into the directory:\n%s", got)
	}
	w.rename(filepath.Join(w.dir, "reload.yaml"), outside)
	w.loads(5)
	none("after the file was renamed out of the directory")
}

func TestReloadSeesFoldersBelow(t *testing.T) {
	w := reloading(t, "", oneFile("a.yaml", versioned(1, 11)))
	below := filepath.Join(w.dir, "below", "deeper")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	oneFile("b.yaml", "domain: more\n")(below)
	w.loads(2)
	oneFile("b.yaml", "domain: other\n")(below)
	w.loads(3)
	w.rename(filepath.Join(w.dir, "below"), filepath.Join(w.dir, ".hidden"))
	w.loads(4)
	w.rename(filepath.Join(w.dir, ".hidden"), filepath.Join(w.dir, "again"))
	w.loads(5)
	oneFile("b.yaml", "domain: third\n")(filepath.Join(w.dir, "again", "deeper"))
	w.loads(6)
}

// What is half-written is no policy, or one that is wrong; the rest makes it right.
func TestReloadOfAHalfWrittenFile(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)))
	f, err := os.Create(filepath.Join(w.dir, "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole := versioned(2, 12)
	half := len(whole) - len("12}\n")
	if _, err := f.WriteString(whole[:half]); err != nil {
		t.Fatal(err)
	}
	w.failures(1)
	w.decides(1, 11)
	if _, err := f.WriteString(whole[half:]); err != nil {
		t.Fatal(err)
	}
	w.decides(2, 12)
	if got := w.metric("weir_policy_last_load_successful"); got != 1 {
		t.Errorf("the last load is %v, want successful", got)
	}
}

func TestReloadWhenTheDirectoryGoesAndReturns(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)))
	remove := func() {
		t.Helper()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
	}
	again := func(text string) {
		t.Helper()
		if err := os.Mkdir(w.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.write("policy.yaml", text)
	}
	remove()
	w.failures(1)
	w.decides(1, 11)
	again(versioned(1, 11))
	eventually(t, "all is well again", func() bool { return w.metric("weir_policy_last_load_successful") == 1 })
	if got := w.metric("weir_policy_loads_total"); got != 1 {
		t.Errorf("%v loads, want only that of the start: nothing changed", got)
	}
	w.write("policy.yaml", versioned(2, 12))
	w.decides(2, 12)
	remove()
	eventually(t, "the directory is missed", func() bool { return w.metric("weir_policy_last_load_successful") == 0 })
	again(versioned(3, 13))
	w.decides(3, 13)
}

// Without inotify the poll finds what changed.
func TestReloadByPollAlone(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)), func(o *sidecar.Options, s *sidecar.Sidecar) {
		o.Config.Policy.Poll = 100 * time.Millisecond
		if s != nil {
			s.CannotWatch()
		}
	})
	for v := 2; v <= 3; v++ {
		w.write("policy.yaml", versioned(v, 10+v))
		w.decides(v, 10+v)
	}
	if n := w.log.count("cannot be watched"); n != 1 {
		t.Errorf("logged %d times that nothing can be watched, want once", n)
	}
	if got := w.metric("weir_policy_watched"); got != 0 {
		t.Errorf("weir_policy_watched = %v, want 0", got)
	}
}

// With neither, a demand does it, by a signal or by admin.
func TestReloadOnDemand(t *testing.T) {
	hangup := make(chan struct{})
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)), func(o *sidecar.Options, s *sidecar.Sidecar) {
		o.Reload = hangup
		if s != nil {
			s.CannotWatch()
		}
	})
	w.write("policy.yaml", versioned(2, 12))
	hangup <- struct{}{}
	w.decides(2, 12)
	hangup <- struct{}{}
	eventually(t, "an answer in the log", func() bool { return w.log.count("policy unchanged") == 1 })

	w.write("policy.yaml", versioned(3, 13))
	code, first := w.reload()
	if code != http.StatusOK || !first.Reloaded || first.Version != 3 || first.Digest == "" {
		t.Errorf("POST = %d %+v, want the new set", code, first)
	}
	w.decides(3, 13)
	code, second := w.reload()
	if code != http.StatusOK || second.Reloaded || second.Version != 3 || second.Digest != first.Digest {
		t.Errorf("POST = %d %+v, want the same set and no reload", code, second)
	}

	w.write("policy.yaml", "version: 4\ndomain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n  - kez: b\n")
	w.write("second.yaml", "domian: other\n")
	code, bad := w.reload()
	if code != http.StatusUnprocessableEntity || bad.Reloaded || bad.Version != 3 || bad.Digest != first.Digest {
		t.Errorf("POST = %d %+v, want a refusal and the set before", code, bad)
	}
	for _, want := range []string{"policy.yaml:5 invalid_unit", "policy.yaml:6 unknown_key", "second.yaml:1 unknown_key"} {
		found := false
		for _, f := range bad.Faults {
			found = found || want == fmt.Sprintf("%s:%d %s", filepath.Base(f.File), f.Line, f.Code) && f.Message != "" && f.Mend != ""
		}
		if !found {
			t.Errorf("no fault %s in %+v", want, bad.Faults)
		}
	}
	if code, _ := get(t, "http://"+w.Addrs().Admin+"/-/reload"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET = %d, want POST only", code)
	}
}

// A bad change keeps the set before, and shows where people look: once in the
// log, in metrics, in admin.
func TestBadChangeKeepsTheSetBefore(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)), func(o *sidecar.Options, _ *sidecar.Sidecar) {
		o.Config.Policy.Poll = 100 * time.Millisecond
	})
	metrics := func(success, failures, version float64) {
		t.Helper()
		for name, want := range map[string]float64{
			"weir_policy_last_load_successful": success, "weir_policy_load_failures_total": failures, "weir_policy_version": version,
			"weir_policy_info": 1,
		} {
			if got := w.metric(name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
	}
	admin := func() string {
		_, body := get(t, "http://"+w.Addrs().Admin+"/policy")
		return body
	}
	metrics(1, 0, 1)
	if body := admin(); strings.Contains(body, "refused") || !strings.Contains(body, `"digest": "`) {
		t.Errorf("/policy of a good set: %s", body)
	}
	loadedAt := w.metric("weir_policy_loaded_timestamp_seconds")

	w.write("policy.yaml", "domain: api\nversion: 2\ndescriptors: nonsense\n")
	w.failures(1)
	w.decides(1, 11)
	metrics(0, 1, 1)
	if got := w.metric("weir_policy_loaded_timestamp_seconds"); got != loadedAt {
		t.Error("the time of the set that decides changed")
	}
	if body := admin(); !strings.Contains(body, `"refused"`) || !strings.Contains(body, `"line": 3`) {
		t.Errorf("/policy does not show the fault: %s", body)
	}
	if code, body := get(t, "http://"+w.Addrs().Ops+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d %s: the set before still decides", code, body)
	}
	// Another file that nobody loads makes the watch tell of something, and
	// the poll looks all the time.
	w.write(".note", "x")
	w.write(".note", "xx")
	if code, _ := w.reload(); code != http.StatusUnprocessableEntity {
		t.Errorf("POST = %d, want 422", code)
	}
	if n := w.log.count("policy refused"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	w.write("policy.yaml", "domain: api\nversion: 2\ndescriptors: other nonsense\n")
	eventually(t, "the second refusal", func() bool { return w.log.count("policy refused") == 2 })
	w.write("policy.yaml", versioned(2, 12))
	w.decides(2, 12)
	eventually(t, "all is well", func() bool { return w.metric("weir_policy_last_load_successful") == 1 })
	if body := admin(); strings.Contains(body, "refused") {
		t.Errorf("/policy still shows the fault: %s", body)
	}
}

// Semantics S35: a running sidecar never goes back.
func TestVersionsGoUpOnly(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(5, 11)))
	for name, bad := range map[string]struct{ text, message, mend string }{
		"lower": {versioned(4, 12), "version 4 is lower than 5", "republish it as a higher one, at least 6"},
		"none":  {strings.TrimPrefix(versioned(0, 12), "version: 0\n"), "no version, and version 5 decides", "at least 6"},
	} {
		w.write("policy.yaml", bad.text)
		code, got := w.reload()
		if code != http.StatusUnprocessableEntity || got.Version != 5 || len(got.Faults) != 1 || got.Faults[0].Code != "version_lower" ||
			!strings.Contains(got.Faults[0].Message, bad.message) || !strings.Contains(got.Faults[0].Mend, bad.mend) {
			t.Errorf("%s: POST = %d %+v", name, code, got)
		}
		w.decides(5, 11)
	}
	w.write("policy.yaml", versioned(5, 12))
	eventually(t, "the same version with another content", func() bool {
		return w.log.count("policy changed without a higher version") == 1
	})
	w.loads(2)
	w.decides(5, 12)
	w.write("policy.yaml", versioned(7, 13))
	w.decides(7, 13)
}

// A change of numbers keeps what was used; a rule that is removed limits
// nothing any more, nor does a domain; when they return, so does what was used.
func TestReloadInPlace(t *testing.T) {
	rules := func(n int, more string) string {
		return fmt.Sprintf("domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: %d}\n%s", n, more)
	}
	const second = "  - key: path\n    rate_limit: {unit: year, requests_per_unit: 3}\n"
	w := reloading(t, "", oneFile("policy.yaml", rules(2, second)))
	is := func(key, want string) {
		t.Helper()
		if got := w.ask("api", key, "ann"); !strings.Contains(got, want) {
			t.Errorf("%s: want %s in\n%s", key, want, got)
		}
	}
	is("user", "remaining 1")
	is("path", "remaining 2")
	w.write("policy.yaml", rules(5, ""))
	w.loads(2)
	is("user", "limit 5 per YEAR, remaining 3")
	is("path", `cause: "no_rule"`)
	w.write("policy.yaml", "domain: other\n")
	w.loads(3)
	is("user", `cause: "no_rule"`)
	w.write("policy.yaml", rules(2, second))
	w.loads(4)
	is("user", "overall: OVER_LIMIT")
	is("path", "remaining 1")
	w.write("policy.yaml", strings.Replace(rules(2, ""), "year, requests", "day, requests", 1))
	w.loads(5)
	is("user", "limit 2 per DAY")
}

func TestEmptySetIsAFault(t *testing.T) {
	for name, allowed := range map[string]bool{"refused": false, "allowed": true} {
		t.Run(name, func(t *testing.T) {
			w := reloading(t, "", oneFile("policy.yaml", twoAYear), func(o *sidecar.Options, _ *sidecar.Sidecar) {
				o.Config.Policy.AllowEmpty = allowed
			})
			if err := os.Remove(filepath.Join(w.dir, "policy.yaml")); err != nil {
				t.Fatal(err)
			}
			want := `cause: "allowed"`
			if allowed {
				want = `cause: "no_rule"`
				w.loads(2)
			} else {
				w.failures(1)
			}
			if got := w.ask("api", "user", "ann"); !strings.Contains(got, want) {
				t.Errorf("want %s in\n%s", want, got)
			}
		})
	}
}

// Files that never come to rest are loaded all the same, now and then.
func TestReloadOfFilesThatNeverRest(t *testing.T) {
	w := reloading(t, "", oneFile("policy.yaml", versioned(1, 11)))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for v := 2; ; v++ {
			next := filepath.Join(w.dir, ".next")
			if os.WriteFile(next, []byte(versioned(v, 11)), 0o644) != nil || os.Rename(next, filepath.Join(w.dir, "policy.yaml")) != nil {
				return
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	w.loads(2)
	if got := w.metric("weir_policy_load_failures_total"); got != 0 {
		t.Errorf("%v failures", got)
	}
}
