package sidecar

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// materialEvery is how often the files are looked at though nobody needs what
// they hold: so that a bad one is told of before the next connection needs it.
const materialEvery = 10 * time.Second

// material is a value made of files that others replace while the process runs:
// certificates, a password. Each get looks at the files, so what they hold is
// used from the next connection on. While they cannot be used, what they held
// before is, so that a file that is met half-written breaks nothing.
//
// All methods are safe for concurrent use.
type material[T any] struct {
	setting string // what names the files, for people
	files   []materialFile
	parse   func(contents [][]byte) (T, error)

	// Set by observe, before the value is shared.
	log     *slog.Logger
	metrics *materialMetrics
	expires func(T) time.Time // nil: never

	mu    sync.Mutex
	seen  [sha256.Size]byte // what the last look met; guarded by mu
	value T                 // what is in use; guarded by mu
}

// materialFile is one of the files, with the setting that names it.
type materialFile struct{ setting, path string }

// fault says what is wrong with the file.
func (f materialFile) fault(err error, mend string) Fault {
	fault := Fault{Path: f.setting, Value: f.path, Problem: err.Error(), Mend: mend}
	if w := (*wrong)(nil); errors.As(err, &w) {
		fault.Problem, fault.Mend = w.problem, w.mend
	}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		fault.Problem = pe.Err.Error() // The path is the value.
	}
	return fault
}

// newMaterial reads the files for the first time. An error is a Fault of the
// settings. parse gets the contents in the order of the files.
func newMaterial[T any](setting string, files []materialFile, parse func([][]byte) (T, error)) (*material[T], error) {
	m := &material[T]{setting: setting, files: files, parse: parse}
	contents, seen, err := m.read()
	if err != nil {
		return nil, err
	}
	if m.value, err = parse(contents); err != nil {
		return nil, err
	}
	m.seen = seen
	return m, nil
}

// observe says who is told of what becomes of the files. It must be called
// once, before get and run.
func (m *material[T]) observe(log *slog.Logger, metrics *materialMetrics, expires func(T) time.Time) {
	m.log, m.metrics, m.expires = log, metrics, expires
	m.count()
}

// count counts the value as one that came into use.
func (m *material[T]) count() {
	m.metrics.current.WithLabelValues(m.setting).Set(1)
	m.metrics.loads.WithLabelValues(m.setting).Inc()
	if m.expires == nil {
		return
	}
	if at := m.expires(m.value); !at.IsZero() {
		m.metrics.expiry.WithLabelValues(m.setting).Set(float64(at.Unix()))
	}
}

// get returns what the files hold, or held when they could last be used.
func (m *material[T]) get() T {
	m.mu.Lock()
	defer m.mu.Unlock()
	contents, seen, err := m.read()
	if seen == m.seen {
		return m.value
	}
	m.seen = seen
	var value T
	if err == nil {
		value, err = m.parse(contents)
	}
	if err != nil {
		m.log.Error("files refused, what they held before is used on", "setting", m.setting, "fault", err.Error())
		m.metrics.current.WithLabelValues(m.setting).Set(0)
		return m.value
	}
	m.value = value
	m.log.Info("files loaded", "setting", m.setting)
	m.count()
	return value
}

// run looks at the files now and then, until ctx ends.
func (m *material[T]) run(ctx context.Context) {
	tick := time.NewTicker(materialEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.get()
		}
	}
}

// read returns the contents, and a digest of them or of why there are none.
func (m *material[T]) read() (contents [][]byte, seen [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, f := range m.files {
		data, _, err := readFile(f.path, maxMaterial)
		if err != nil {
			err = f.fault(err, "name a readable file")
			return nil, sha256.Sum256([]byte(err.Error())), err
		}
		_ = binary.Write(h, binary.BigEndian, int64(len(data))) // A hash takes everything.
		h.Write(data)
		contents = append(contents, data)
	}
	return contents, [sha256.Size]byte(h.Sum(nil)), nil
}

// maxMaterial bounds what is read of one file: the certificates that all of a
// system trusts have a fifth of it.
const maxMaterial = 1 << 20

// readFile reads a file of at most that many bytes.
func readFile(path string, most int) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() { // Opening a pipe could wait for ever.
		return nil, nil, &wrong{"not a file", "name a file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > most {
		return nil, nil, &wrong{fmt.Sprintf("larger than %d bytes", most), "name another file; this one is not what belongs here"}
	}
	return data, info, nil
}

// materialMetrics say what became of files, by the setting that names them.
type materialMetrics struct {
	current *prometheus.GaugeVec
	loads   *prometheus.CounterVec
	expiry  *prometheus.GaugeVec
}

func newMaterialMetrics(reg prometheus.Registerer) *materialMetrics {
	labels := []string{"setting"}
	m := &materialMetrics{
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_sidecar_files_current",
			Help: "1 while what the files of a setting hold is in use, 0 while they cannot be used and what they held before is.",
		}, labels),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_sidecar_file_loads_total",
			Help: "Times that what the files of a setting hold came into use, that of the start included.",
		}, labels),
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_sidecar_certificate_expiry_timestamp_seconds",
			Help: "When the certificate in use expires.",
		}, labels),
	}
	reg.MustRegister(m.current, m.loads, m.expiry)
	return m
}
