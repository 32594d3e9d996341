// Makes page/app.js.gz and page/app.css.gz, which are committed: `npm ci --ignore-scripts && npm run build`.
import { build } from 'esbuild';
import { writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

const { outputFiles } = await build({
  entryPoints: { app: 'main.jsx' },
  outdir: 'page',
  bundle: true,
  minify: true,
  write: false,
  format: 'iife',
  target: 'es2020',
  legalComments: 'none',
  define: { 'process.env.NODE_ENV': '"production"' },
  loader: { '.woff': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl' },
});
for (const { path, contents } of outputFiles) writeFileSync(`${path}.gz`, gzipSync(contents, { level: 9 }));
