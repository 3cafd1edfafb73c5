package sidecar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weir-rl/weir/internal/certtest"
)

// TestCertsFollowTheirFiles: new files are used by the next get, bad ones never,
// and both are told of once.
func TestCertsFollowTheirFiles(t *testing.T) {
	dir := t.TempDir()
	ca := certtest.NewCA(t, "ca")
	first, second := ca.Issue(t, "first"), ca.IssueUntil(t, time.Now().Add(30*time.Minute), "second")
	names := certFiles{
		ca:   certtest.Write(t, dir, "ca.pem", ca.PEM()),
		cert: certtest.Write(t, dir, "cert.pem", first.Cert),
		key:  certtest.Write(t, dir, "key.pem", first.Key),
	}
	m, err := newCerts("store.tls", names)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	metrics := newMaterialMetrics(prometheus.NewRegistry())
	m.observe(slog.New(slog.NewTextHandler(&log, nil)), metrics, (*certs).expires)
	want := func(step, subject string, current, loads, lines int) {
		t.Helper()
		for range 3 { // What did not change is told of once.
			c := m.get()
			if got := c.own.Leaf.Subject.CommonName; got != subject || c.trusted == nil {
				t.Errorf("%s: certificate %q, want %q", step, got, subject)
			}
		}
		if got := testutil.ToFloat64(metrics.current); got != float64(current) {
			t.Errorf("%s: current %v, want %d", step, got, current)
		}
		if got := testutil.ToFloat64(metrics.loads); got != float64(loads) {
			t.Errorf("%s: %v loads, want %d", step, got, loads)
		}
		if got := strings.Count(log.String(), "\n"); got != lines {
			t.Errorf("%s: %d lines are logged, want %d:\n%s", step, got, lines, &log)
		}
		if got, want := testutil.ToFloat64(metrics.expiry), float64(m.get().own.Leaf.NotAfter.Unix()); got != want {
			t.Errorf("%s: expires at %v, want %v", step, got, want)
		}
	}
	want("start", "first", 1, 1, 0)
	certtest.Write(t, dir, "cert.pem", second.Cert)
	want("a certificate without its key", "first", 0, 1, 1)
	if text := log.String(); !strings.Contains(text, "store.tls.key_file: ") || strings.Contains(text, "PRIVATE") {
		t.Errorf("the log says %s", text)
	}
	certtest.Write(t, dir, "key.pem", second.Key)
	want("both", "second", 1, 2, 2)
	certtest.Write(t, dir, "ca.pem", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	want("a damaged authority", "second", 0, 2, 3)
	if err := os.Remove(names.ca); err != nil {
		t.Fatal(err)
	}
	want("none", "second", 0, 2, 4)
	certtest.Write(t, dir, "ca.pem", ca.PEM())
	want("the same again", "second", 1, 3, 5)
}

// TestFilesAreLookedAt: also without a get.
func TestFilesAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := certtest.Write(t, t.TempDir(), "file", []byte("one"))
		m, err := newMaterial("x", []materialFile{{"x", file}}, func(c [][]byte) (string, error) { return string(c[0]), nil })
		if err != nil {
			t.Fatal(err)
		}
		metrics := newMaterialMetrics(prometheus.NewRegistry())
		m.observe(slog.New(slog.DiscardHandler), metrics, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go m.run(ctx)
		certtest.Write(t, filepath.Dir(file), "file", []byte("two"))
		time.Sleep(materialEvery)
		synctest.Wait()
		if got := testutil.ToFloat64(metrics.loads); got != 2 {
			t.Errorf("%v loads, want 2", got)
		}
		cancel()
	})
}

// TestCertsFaults: each names the setting, the file and the mend.
func TestCertsFaults(t *testing.T) {
	dir := t.TempDir()
	ca := certtest.NewCA(t, "ca")
	pair, other := ca.Issue(t, "one"), ca.Issue(t, "other")
	file := func(name string, data []byte) string { return certtest.Write(t, dir, name, data) }
	cert, key := file("cert", pair.Cert), file("key", pair.Key)
	for name, c := range map[string]struct {
		names certFiles
		want  string
	}{
		"no key":          {certFiles{cert: cert}, "x.key_file: required with x.cert_file; "},
		"no certificate":  {certFiles{key: key}, "x.cert_file: required with x.key_file; "},
		"missing":         {certFiles{ca: filepath.Join(dir, "nowhere")}, `x.ca_file: no such file or directory: "` + filepath.Join(dir, "nowhere") + `"; name a readable file`},
		"a directory":     {certFiles{ca: dir}, "x.ca_file: not a file: "},
		"empty":           {certFiles{ca: file("empty", nil)}, "x.ca_file: no certificate: "},
		"a key as ca":     {certFiles{ca: key}, "x.ca_file: no certificate: "},
		"large":           {certFiles{ca: file("large", make([]byte, maxMaterial+1))}, "x.ca_file: larger than 1048576 bytes: "},
		"damaged":         {certFiles{cert: file("damaged", bytes.Replace(pair.Cert, []byte("MII"), []byte("AAA"), 1)), key: key}, "x.cert_file: a certificate that cannot be read"},
		"another key":     {certFiles{cert: cert, key: file("other", other.Key)}, "x.key_file: tls: private key does not match public key: "},
		"no key in it":    {certFiles{cert: cert, key: cert}, "x.key_file: "},
		"a damaged other": {certFiles{ca: file("chain", append(ca.PEM(), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"...))}, "x.ca_file: a certificate that cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newCerts("x", c.names)
			var f Fault
			if m != nil || !errors.As(err, &f) || !strings.HasPrefix(err.Error(), c.want) || f.Mend == "" {
				t.Errorf("newCerts() = %v, %v, want a fault with a mend that begins with %q", m, err, c.want)
			}
		})
	}
	if m, err := newCerts("x", certFiles{}); m != nil || err != nil {
		t.Errorf("newCerts of no files = %v, %v, want nothing", m, err)
	}
}
