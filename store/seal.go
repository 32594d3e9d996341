package store

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sealer encrypts secrets at rest with AES-256-GCM. What it seals is: the key's id (4 bytes of its SHA-256), the nonce,
// the ciphertext. Each secret is bound to its place, the id of the row that it belongs to: moved elsewhere, it does not open.
//
// It seals with one key, and opens with that and with older ones, so that keys can be changed: see reseal.
type Sealer struct {
	keys []sealKey // the one that seals comes first
}

type sealKey struct {
	id   [4]byte
	aead cipher.AEAD
}

// NewSealer takes keys of 32 bytes in base64, the form of PARLEY_SECRET_KEY: the one that seals, and others that open too.
func NewSealer(key string, others ...string) (*Sealer, error) {
	s := &Sealer{}
	for _, k := range append([]string{key}, others...) {
		made, err := newSealKey(k)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, *made)
	}
	return s, nil
}

func newSealKey(key string) (*sealKey, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(key))
	if err != nil || len(raw) != 32 {
		return nil, errors.New("the secret key must be 32 bytes in base64 (openssl rand -base64 32 makes one)")
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	k := &sealKey{aead: aead}
	sum := sha256.Sum256(raw)
	copy(k.id[:], sum[:])
	return k, nil
}

// Seal encrypts plain, bound to place.
func (s *Sealer) Seal(plain []byte, place string) []byte {
	k := &s.keys[0]
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	out := append(append(make([]byte, 0, len(k.id)+len(nonce)+len(plain)+16), k.id[:]...), nonce...)
	return k.aead.Seal(out, nonce, plain, []byte(place))
}

// stale says whether something was sealed with a key that is to be given up.
func (s *Sealer) stale(sealed []byte) bool { return !bytes.HasPrefix(sealed, s.keys[0].id[:]) }

// Open decrypts what Seal made for the same place.
func (s *Sealer) Open(sealed []byte, place string) ([]byte, error) {
	for i := range s.keys {
		k := &s.keys[i]
		if !bytes.HasPrefix(sealed, k.id[:]) {
			continue
		}
		head := len(k.id) + k.aead.NonceSize()
		if len(sealed) < head {
			return nil, errors.New("a sealed secret is too short")
		}
		return k.aead.Open(nil, sealed[len(k.id):head], sealed[head:], []byte(place))
	}
	return nil, errors.New("a secret was sealed with another key")
}

const (
	checkName  = "secret_key_check"
	checkPlain = "parley"
)

// openSealer finds the key and proves it on the stored check value, which the first start writes.
func (s *Store) openSealer(ctx context.Context) error {
	s.sealer = s.cfg.Sealer
	if s.sealer == nil {
		if s.remote() {
			return errors.New("a secret key is required with PostgreSQL: set PARLEY_SECRET_KEY to 32 bytes in base64 (openssl rand -base64 32)")
		}
		var err error
		if s.sealer, err = keyFile(SQLitePath(s.cfg.URL) + ".key"); err != nil {
			return err
		}
	}
	check := s.sealer.Seal([]byte(checkPlain), checkName)
	if _, err := s.db.NewRaw("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", checkName, check).Exec(ctx); err != nil {
		return fmt.Errorf("write the secret key's check value: %w", err)
	}
	var kept []byte
	if err := s.db.NewRaw("SELECT value FROM settings WHERE name = ?", checkName).Scan(ctx, &kept); err != nil {
		return fmt.Errorf("read the secret key's check value: %w", err)
	}
	if plain, err := s.sealer.Open(kept, checkName); err != nil || string(plain) != checkPlain {
		return errors.New("the secret key is not the one that this database was made with: set PARLEY_SECRET_KEY (or restore the .key file beside the database), and after a change PARLEY_SECRET_KEY_OLD")
	}
	return s.reseal(ctx, kept)
}

// keyFile reads the key beside a SQLite database, or makes one, readable by its owner alone.
func keyFile(path string) (*Sealer, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeKeyFile(path); err != nil {
			return nil, fmt.Errorf("make the secret key file: %w", err)
		}
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the secret key file: %w", err)
	}
	sealer, err := NewSealer(string(raw))
	if err != nil {
		return nil, fmt.Errorf("the secret key file %s: %w", path, err)
	}
	return sealer, nil
}

// makeKeyFile writes a new key. The file appears whole or not at all, and one that another process made first stays.
func makeKeyFile(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
