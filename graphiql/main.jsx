import React from 'react';
import { createRoot } from 'react-dom/client';
import { GraphiQL } from 'graphiql';
import { createGraphiQLFetcher } from '@graphiql/toolkit';
import { createClient } from 'graphql-ws';
import 'graphiql/style.css';
import './page.css';

// Subscriptions go over a WebSocket, which takes the credential of the headers editor at connection_init.
let headers = {};
const wsClient = createClient({
  url: location.origin.replace(/^http/, 'ws') + '/graphql',
  connectionParams: () => headers,
});
const fetcher = createGraphiQLFetcher({ url: '/graphql', wsClient });

createRoot(document.getElementById('graphiql')).render(
  <GraphiQL
    fetcher={(params, options) => {
      headers = options?.headers ?? {};
      return fetcher(params, options);
    }}
    defaultHeaders={'{\n  "Authorization": "Bearer at_…"\n}'}
    defaultEditorToolsVisibility="headers"
    defaultQuery={'# Put an access token into the headers below. With an ADMIN token the schema is shown, too.\n\nquery Viewer {\n  viewer {\n    business { name }\n    scope\n  }\n}\n\nsubscription Events {\n  events {\n    cursor\n    node { type timestamp data }\n  }\n}\n'}
  />,
);
